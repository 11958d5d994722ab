#include "text/regex_escape.h"

#include <charconv>
#include <cstdint>

#include "base/utf8.h"

namespace deepinfer {

namespace {

bool IsLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }

// So many hexadecimal digits, or up to six in braces.
std::optional<char32_t> ReadHex(std::string_view pattern, size_t num_digits, size_t* pos) {
  constexpr size_t kMostDigits = 6;
  std::string_view digits = pattern.substr(*pos, num_digits);
  *pos += digits.size();
  if (digits.starts_with('{')) {
    const size_t begin = *pos - digits.size() + 1;
    const size_t close = pattern.find('}', begin);
    if (close == std::string_view::npos) return std::nullopt;
    digits = pattern.substr(begin, close - begin);
    num_digits = digits.size();
    *pos = close + 1;
  }
  uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value, 16);
  const bool is_whole = error == std::errc() && at == end && digits.size() == num_digits;
  const bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (!is_whole || num_digits > kMostDigits || is_surrogate || value > 0x10FFFF) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::optional<char32_t> ReadCharacterEscape(std::string_view pattern, size_t* pos) {
  if (*pos >= pattern.size()) return std::nullopt;
  const Utf8Char next = DecodeUtf8(pattern, *pos);
  *pos += next.size_bytes;
  const char32_t c = next.code_point;
  if (c >= 0x80 || IsDigit(c)) return std::nullopt;
  if (!IsLetter(c)) return c;
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'c':
      if (*pos >= pattern.size() || !IsLetter(static_cast<unsigned char>(pattern[*pos]))) {
        return std::nullopt;
      }
      return pattern[(*pos)++] & 31;
    case 'x':
      return ReadHex(pattern, 2, pos);
    case 'u':
      return ReadHex(pattern, 4, pos);
    default:
      return std::nullopt;
  }
}

}  // namespace deepinfer
