// Splits a text run into the pieces byte-pair merges may not cross (encoding.md §2, step 2).
// The regular expressions of tokenizer.json are recognised by name and scanned by hand.
// Thread rule: a scanner belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deepinfer {

class CodePointTable;

enum class PreTokenizerKind : unsigned char {
  // The three Split passes of the release tokenizer: kNumberPattern, kCjkPattern, kMainPattern.
  kThreePass,
  // The built-in pattern of a ByteLevel pre-tokenizer with use_regex: kByteLevelPattern.
  kByteLevel,
};

inline constexpr std::string_view kNumberPattern = R"(\p{N}{1,3})";
inline constexpr std::string_view kCjkPattern = "[一-龥\u3040-ゟ゠-ヿ]+";
inline constexpr std::string_view kMainPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
inline constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PieceScanner {
 public:
  // Precondition: `text` is valid UTF-8. It is borrowed.
  PieceScanner(PreTokenizerKind kind, std::string_view text);

  // Next non-empty piece; the pieces concatenate to the text. Empty at the end.
  std::string_view Next();

 private:
  struct Char;

  Char At(size_t offset) const;
  size_t SkipWhile(size_t offset, uint32_t class_set) const;
  size_t EndOfNumberGroup() const;
  size_t EndOfSegment() const;
  size_t EndOfMainMatch() const;
  size_t EndOfGap() const;
  size_t EndOfSpaces(size_t run_end) const;
  size_t EndOfByteLevelMatch() const;
  std::string_view Take(size_t end);

  PreTokenizerKind kind_;
  std::string_view text_;
  const CodePointTable& table_;
  size_t position_ = 0;
  // End of the piece of the first two passes; the third pass looks no further.
  size_t segment_end_ = 0;
};

}  // namespace deepinfer
