#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace deepinfer {
namespace {

constexpr bool SpellsItself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char16_t, 256> MakeCodePoints() {
  std::array<char16_t, 256> code_points{};
  char16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    code_points[byte] = SpellsItself(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return code_points;
}

constexpr std::array<char16_t, 256> kCodePoints = MakeCodePoints();
constexpr size_t kAlphabetEnd = 0x144;

constexpr std::array<int16_t, kAlphabetEnd> MakeBytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kCodePoints[static_cast<size_t>(byte)]] = byte;
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kBytes = MakeBytes();

}  // namespace

char32_t ByteLevelCodePoint(unsigned char byte) { return kCodePoints[byte]; }

bool AppendByteLevelBytes(std::string_view token_string, std::string* bytes) {
  const size_t size_before = bytes->size();
  for (size_t i = 0; i < token_string.size();) {
    const Utf8Char c = DecodeUtf8(token_string, i);
    if (c.code_point >= kAlphabetEnd || kBytes[c.code_point] < 0) {
      bytes->resize(size_before);
      return false;
    }
    bytes->push_back(static_cast<char>(kBytes[c.code_point]));
    i += c.size_bytes;
  }
  return true;
}

}  // namespace deepinfer
