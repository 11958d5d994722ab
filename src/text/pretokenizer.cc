#include "text/pretokenizer.h"

#include "text/code_point_class.h"

namespace deepinfer {
namespace {

using Class = CodePointClass;

constexpr uint32_t Set(Class c) { return 1u << static_cast<unsigned>(c); }

constexpr uint32_t kLetters = Set(Class::kLetter);
constexpr uint32_t kNumbers = Set(Class::kNumber);
constexpr uint32_t kPunctuation = Set(Class::kPunctuation);
constexpr uint32_t kNewlines = Set(Class::kNewline);
constexpr uint32_t kWordParts = kLetters | Set(Class::kMark);
constexpr uint32_t kSpaces = Set(Class::kSpace) | kNewlines;
// [^\s\p{L}\p{N}]
constexpr uint32_t kByteLevelSymbols = ~(kSpaces | kLetters | kNumbers);

constexpr bool IsAsciiLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// kCjkPattern: the original block of unified ideographs up to U+9FA5, hiragana, katakana.
constexpr bool IsCjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

constexpr unsigned char Byte(char c) { return static_cast<unsigned char>(c); }

}  // namespace

struct PieceScanner::Char {
  char32_t code_point;
  size_t size_bytes;
  uint32_t set;  // the class as a one-element set

  bool In(uint32_t class_set) const { return (set & class_set) != 0; }
};

PieceScanner::PieceScanner(PreTokenizerKind kind, std::string_view text)
    : kind_(kind), text_(text), table_(CodePointTable::Get()) {}

inline PieceScanner::Char PieceScanner::At(size_t offset) const {
  const char* p = text_.data() + offset;
  char32_t c = Byte(p[0]);
  size_t size_bytes = 1;
  if (c >= 0xF0) {
    c = (c & 0x07) << 18 | (Byte(p[1]) & 0x3Fu) << 12 | (Byte(p[2]) & 0x3Fu) << 6 |
        (Byte(p[3]) & 0x3Fu);
    size_bytes = 4;
  } else if (c >= 0xE0) {
    c = (c & 0x0F) << 12 | (Byte(p[1]) & 0x3Fu) << 6 | (Byte(p[2]) & 0x3Fu);
    size_bytes = 3;
  } else if (c >= 0x80) {
    c = (c & 0x1F) << 6 | (Byte(p[1]) & 0x3Fu);
    size_bytes = 2;
  }
  return {c, size_bytes, Set(table_.Lookup(c))};
}

inline size_t PieceScanner::SkipWhile(size_t offset, uint32_t class_set) const {
  while (offset < segment_end_) {
    const Char c = At(offset);
    if (!c.In(class_set)) break;
    offset += c.size_bytes;
  }
  return offset;
}

inline std::string_view PieceScanner::Take(size_t end) {
  const std::string_view piece = text_.substr(position_, end - position_);
  position_ = end;
  return piece;
}

std::string_view PieceScanner::Next() {
  if (position_ == text_.size()) return {};
  if (kind_ == PreTokenizerKind::kByteLevel) {
    segment_end_ = text_.size();
    return Take(EndOfByteLevelMatch());
  }
  if (position_ == segment_end_) {
    if (At(position_).In(kNumbers)) {
      // No alternative of the third pass matches inside a piece of numbers: it stays whole.
      segment_end_ = EndOfNumberGroup();
      return Take(segment_end_);
    }
    segment_end_ = EndOfSegment();
  }
  const size_t match_end = EndOfMainMatch();
  return Take(match_end != position_ ? match_end : EndOfGap());
}

size_t PieceScanner::EndOfNumberGroup() const {
  size_t end = position_;
  for (int i = 0; i < 3 && end < text_.size(); ++i) {
    const Char c = At(end);
    if (!c.In(kNumbers)) break;
    end += c.size_bytes;
  }
  return end;
}

// Where the second pass ends the piece at position_, which begins no number: a run inside kCjk, or
// a run free of numbers and CJK. (No \p{N} lies inside the CJK ranges.)
size_t PieceScanner::EndOfSegment() const {
  const bool cjk = IsCjk(At(position_).code_point);
  size_t end = position_;
  while (end < text_.size()) {
    const Char c = At(end);
    if (IsCjk(c.code_point) != cjk || c.In(kNumbers)) break;
    end += c.size_bytes;
  }
  return end;
}

// End of the match of kMainPattern at position_, or position_ when no alternative matches.
size_t PieceScanner::EndOfMainMatch() const {
  const Char first = At(position_);
  const size_t second = position_ + first.size_bytes;

  // ASCII punctuation and ASCII letters. All 32 ASCII members of P and S are in the bracket.
  if (first.In(kPunctuation) && first.code_point < 0x80) {
    size_t end = second;
    while (end < segment_end_ && IsAsciiLetter(text_[end])) ++end;
    if (end != second) return end;
  }
  // A word, or one character of any kind but newline and punctuation in front of a word.
  if (first.In(kWordParts)) return SkipWhile(second, kWordParts);
  if (!first.In(kNewlines | kPunctuation)) {
    const size_t end = SkipWhile(second, kWordParts);
    if (end != second) return end;
  }
  // Punctuation, with a space in front and newlines behind.
  const size_t punctuation_begin = first.code_point == ' ' ? second : position_;
  const size_t punctuation_end = SkipWhile(punctuation_begin, kPunctuation);
  if (punctuation_end != punctuation_begin) return SkipWhile(punctuation_end, kNewlines);

  if (!first.In(kSpaces)) return position_;
  const size_t run_end = SkipWhile(second, kSpaces);
  // \s*[\r\n]+ gives back what follows the last newline of the run. All newlines are one byte.
  for (size_t end = run_end; end > position_; --end) {
    if (text_[end - 1] == '\n' || text_[end - 1] == '\r') return end;
  }
  return EndOfSpaces(run_end);
}

// \s+(?!\S)|\s+ over the white space [position_, run_end): the last one is left to what follows,
// unless nothing follows or it is the only one.
size_t PieceScanner::EndOfSpaces(size_t run_end) const {
  if (run_end == segment_end_) return run_end;
  size_t last = run_end - 1;
  while ((Byte(text_[last]) & 0xC0) == 0x80) --last;
  return last == position_ ? run_end : last;
}

// Characters no alternative of kMainPattern matches stay together until the next match.
size_t PieceScanner::EndOfGap() const {
  PieceScanner ahead = *this;
  do {
    ahead.position_ += ahead.At(ahead.position_).size_bytes;
  } while (ahead.position_ < segment_end_ && ahead.EndOfMainMatch() == ahead.position_);
  return ahead.position_;
}

size_t PieceScanner::EndOfByteLevelMatch() const {
  const std::string_view rest = text_.substr(position_);
  for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (rest.starts_with(suffix)) return position_ + suffix.size();
  }
  const Char first = At(position_);
  const size_t begin = first.code_point == ' ' ? position_ + 1 : position_;
  for (const uint32_t class_set : {kLetters, kNumbers, kByteLevelSymbols}) {
    const size_t end = SkipWhile(begin, class_set);
    if (end != begin) return end;
  }
  return EndOfSpaces(SkipWhile(position_, kSpaces));
}

}  // namespace deepinfer
