// JSON Schemas of request bodies, from the validators themselves.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// Of the body of a route, by its name; render routes take what their generating route takes.
// {"type":"object"} for routes without a description.
std::string RequestSchemaOf(std::string_view route);

}  // namespace deepinfer
