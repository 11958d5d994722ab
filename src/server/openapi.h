// The OpenAPI document of the routes that exist, built from the route table.
// Thread rule: pure function.
#pragma once

#include <string>

namespace deepinfer {

std::string OpenApiDocument();

}  // namespace deepinfer
