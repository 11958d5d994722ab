// The inside of a JSON string, without its quotes: \" \\ \n \r \t \b \f, other controls below 0x20
// as \u00xx, everything else as it is.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// Pieces may be escaped one by one: escaping works byte by byte.
void AppendJsonEscaped(std::string_view text, std::string* out);

}  // namespace deepinfer
