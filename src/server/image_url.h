// Checks the source of an image part: data URLs with base64 bytes, or http(s) URLs. Nothing is
// decoded or fetched.
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

// What an image part came from; the messages differ.
enum class ImageField : unsigned char { kImageUrl, kFileData };

struct CheckedImageUrl {
  bool is_data_url = false;
  std::string fault;  // empty: acceptable
};

CheckedImageUrl CheckImageUrl(std::string_view url, ImageField field);

// Base64 in the lenient form of browsers: spaces, missing padding and loose bits are fine.
bool IsForgivingBase64(std::string_view text);

// Base64 in the strict form of the Messages API: no spaces, padding where it is needed, no loose
// bits; padding beyond the need is fine.
bool IsPaddedBase64(std::string_view text);

// The bytes of an accepted data URL: percent escapes resolved, then base64. Empty if malformed.
std::optional<std::string> DecodeDataUrl(std::string_view url);

}  // namespace deepinfer
