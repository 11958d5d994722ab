#include "transfer/extent.h"

#include <bit>
#include <cstring>

#include "base/crc32c.h"

namespace deepinfer {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

namespace {

constexpr uint32_t kMagic = 0x31584944;  // "DIX1"
constexpr size_t kCrcAt = kFrameBytes - sizeof(uint32_t);

template <typename T>
void Put(FrameHeader* header, size_t* at, T value) {
  std::memcpy(header->data() + *at, &value, sizeof value);
  *at += sizeof value;
}

template <typename T>
T Get(std::span<const std::byte, kFrameBytes> header, size_t* at) {
  T value;
  std::memcpy(&value, header.data() + *at, sizeof value);
  *at += sizeof value;
  return value;
}

}  // namespace

FrameHeader EncodeFrame(const Extent& extent) {
  FrameHeader header{};
  size_t at = 0;
  Put(&header, &at, kMagic);
  Put(&header, &at, extent.ticket);
  Put(&header, &at, extent.offset);
  Put(&header, &at, static_cast<uint32_t>(extent.size_bytes));
  Put(&header, &at, extent.crc32c);
  Put(&header, &at, Crc32c(std::span(header).first<kCrcAt>()));
  return header;
}

Result<Extent> DecodeFrame(std::span<const std::byte, kFrameBytes> header) {
  size_t at = 0;
  const auto magic = Get<uint32_t>(header, &at);
  Extent extent;
  extent.ticket = Get<uint64_t>(header, &at);
  extent.offset = Get<int64_t>(header, &at);
  extent.size_bytes = Get<uint32_t>(header, &at);
  extent.crc32c = Get<uint32_t>(header, &at);
  if (magic != kMagic || Get<uint32_t>(header, &at) != Crc32c(header.first<kCrcAt>())) {
    return DataCorruption("a frame of a data connection does not begin as one");
  }
  if (extent.offset < 0 || extent.size_bytes < 1 || extent.size_bytes > kExtentBytes) {
    return DataCorruption("a frame of a data connection has an impossible extent");
  }
  return extent;
}

uint32_t ManifestCrc(std::span<const uint32_t> crcs) { return Crc32c(std::as_bytes(crcs)); }

}  // namespace deepinfer
