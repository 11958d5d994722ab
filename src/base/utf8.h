// UTF-8: decode, validate, replace what is invalid. "Maximal subpart" rule of the Unicode
// standard (chapter 3, table 3-8): each longest prefix of a well-formed sequence, or else each
// single byte, becomes one U+FFFD.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deepinfer {

inline constexpr char32_t kReplacementCodePoint = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8Status : unsigned char {
  kValid,
  // The bytes up to the end of the input begin a well-formed sequence.
  kIncomplete,
  kInvalid,
};

struct Utf8Char {
  // kReplacementCodePoint unless `status` is kValid.
  char32_t code_point;
  // Bytes to step over: 1 to 4 when valid, else the length of the maximal subpart, 1 to 3.
  size_t size_bytes;
  Utf8Status status;
};

// Decodes the sequence at text[offset]. Precondition: offset < text.size().
Utf8Char DecodeUtf8(std::string_view text, size_t offset);

bool IsValidUtf8(std::string_view text);

// Length of the longest valid prefix; text.size() when all is valid.
size_t ValidUtf8Prefix(std::string_view text);

// `text` with every maximal subpart replaced by U+FFFD, an incomplete tail included.
std::string ReplaceInvalidUtf8(std::string_view text);

// Moves the complete code points at the front of `pending` to the end of `out`, with U+FFFD for
// bytes that cannot become valid; an incomplete tail of at most 3 bytes stays in `pending`.
void DrainCompleteUtf8(std::string* pending, std::string* out);

// Appends the encoding of a Unicode scalar value; U+FFFD for anything else.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace deepinfer
