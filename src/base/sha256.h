// SHA-256 of bytes in memory.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);

// Lower-case hexadecimal, 64 characters.
std::string Sha256Hex(std::string_view bytes);

}  // namespace deepinfer
