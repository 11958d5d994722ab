// The printable alphabet of byte-level BPE: one code point for each byte (encoding.md §2, step 3).
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// Code point that spells `byte`: itself where printable in Latin-1, else from U+0100 upwards.
char32_t ByteLevelCodePoint(unsigned char byte);

// Appends the bytes that the vocabulary string spells and returns true; false, with `bytes` as
// before, when a character is outside the alphabet. Precondition: valid UTF-8.
bool AppendByteLevelBytes(std::string_view token_string, std::string* bytes);

}  // namespace deepinfer
