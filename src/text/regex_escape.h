// Escapes of regular expressions that stand for one character, as ECMAScript has them: \n, \cA,
// \x41, \u0041, \u{1F600}, and any sign that is no letter and no digit.
// Thread rule: pure function.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace deepinfer {

// The character of the escape whose backslash ends at *pos, and *pos behind it. Nothing, and any
// *pos, where it is no such escape or not a character.
std::optional<char32_t> ReadCharacterEscape(std::string_view pattern, size_t* pos);

}  // namespace deepinfer
