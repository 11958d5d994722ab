// Bytes as text, for what a test and a program beside it say to each other.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

inline std::string HexOf(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.push_back(kDigits[byte / 16]);
    text.push_back(kDigits[byte % 16]);
  }
  return text;
}

inline std::string BytesOfHex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

}  // namespace deepinfer
