// A run of bytes of one transfer, and how a data connection frames it.
// Thread rule: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace deepinfer {

// Large enough that the cost of an announcement vanishes, small enough that one that arrives broken
// is cheap to send again.
inline constexpr int64_t kExtentBytes = int64_t{1} << 20;

// Bytes [offset, offset + size_bytes) of the transfer that `ticket` names.
struct Extent {
  uint64_t ticket = 0;
  int64_t offset = 0;
  int64_t size_bytes = 0;  // 1 to kExtentBytes
  uint32_t crc32c = 0;     // of the bytes
  // Of the window of bytes on the way, in kExtentBytes: where they lie, with shared memory.
  uint32_t slot = 0;
};

// A part of a transfer: extents hold whole units of it, the last of which may be shorter.
struct TransferRegion {
  int64_t size_bytes = 0;
  int64_t unit_bytes = 0;  // 1 to kExtentBytes
};

// Little endian: magic u32, ticket u64, offset u64, size u32, CRC of the bytes u32, CRC of all of
// this u32. The bytes follow.
inline constexpr size_t kFrameBytes = 32;
using FrameHeader = std::array<std::byte, kFrameBytes>;

FrameHeader EncodeFrame(const Extent& extent);
// data_corruption when the header is not whole or a field is out of range.
Result<Extent> DecodeFrame(std::span<const std::byte, kFrameBytes> header);

// The CRC of a whole transfer: of the CRCs of its extents in the order of their offsets.
uint32_t ManifestCrc(std::span<const uint32_t> crcs);

}  // namespace deepinfer
