// CRC32C (Castagnoli; initial value and final xor 0xFFFFFFFF) of bytes in memory.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer {

// CRC of the bytes; pass the CRC of what comes before to continue.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc_so_far = 0);

// The same by table, for processors without the instruction and as its oracle.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc_so_far = 0);

}  // namespace deepinfer
