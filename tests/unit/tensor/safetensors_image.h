// File images for the safetensors tests: any header text, sound or not, with its length field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer {

inline std::string SafetensorsLength(uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((value >> shift) & 0xFF);
  return bytes;
}

// The length field, the header, then data_bytes bytes counting 1, 2, 3, ...
inline std::string SafetensorsImage(std::string_view header, size_t data_bytes) {
  std::string image = SafetensorsLength(header.size());
  image += header;
  for (size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i + 1);
  return image;
}

inline std::span<const std::byte> ImageBytes(std::string_view image) {
  return {reinterpret_cast<const std::byte*>(image.data()), image.size()};
}

}  // namespace deepinfer
