#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "base/utf8.h"
#include "text/code_point_class.h"
#include "unit/text/regex_splitter.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

using testing::Regex;
using testing::RegexSplitter;

std::vector<std::string> Scan(PreTokenizerKind kind, std::string_view text) {
  std::vector<std::string> pieces;
  PieceScanner scanner(kind, text);
  for (std::string_view piece = scanner.Next(); !piece.empty(); piece = scanner.Next()) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

struct Oracle {
  PreTokenizerKind kind;
  RegexSplitter splitter;
};

std::vector<Oracle>& Oracles() {
  static std::vector<Oracle> oracles = [] {
    std::vector<Oracle> made;
    made.push_back(
        {PreTokenizerKind::kThreePass, RegexSplitter({kNumberPattern, kCjkPattern, kMainPattern})});
    made.push_back({PreTokenizerKind::kByteLevel, RegexSplitter({kByteLevelPattern})});
    return made;
  }();
  return oracles;
}

void ExpectOraclePieces(std::string_view text) {
  for (Oracle& oracle : Oracles()) {
    ASSERT_EQ(Scan(oracle.kind, text), oracle.splitter.Split(text))
        << "kind " << static_cast<int>(oracle.kind) << " text " << ::testing::PrintToString(text);
  }
}

// Code points that stand on the edges of the patterns, several of each class.
constexpr char32_t kEdgeCodePoints[] = {
    'a',    'Z',    's',    't',    'l',    '0',    '9',    '\'',    '(',     '_',      '~',
    '$',    ' ',    ' ',    '\t',   '\v',   '\n',   '\r',   0x00,    0x1C,    0x7F,     0x85,
    0xA0,   0xAB,   0xAD,   0xB2,   0xBC,   0xE9,   0x301,  0x378,   0x5D0,   0x661,    0x903,
    0x1680, 0x180E, 0x2000, 0x200A, 0x200B, 0x200D, 0x2028, 0x2029,  0x202F,  0x205F,   0x2160,
    0x20AC, 0x20DD, 0x3000, 0x3007, 0x303F, 0x3040, 0x3042, 0x3099,  0x309B,  0x309F,   0x30A0,
    0x30AB, 0x30FB, 0x30FC, 0x30FF, 0x3100, 0x3105, 0x4DFF, 0x4E00,  0x4E2D,  0x9FA5,   0x9FA6,
    0xE000, 0xFE0F, 0xFF01, 0xFF10, 0xFF21, 0xFFFD, 0xFFFF, 0x1F600, 0x1D7D8, 0x10FFFF,
};

// The two Unicode libraries may know different versions: the oracle has no say on code points that
// are unassigned in its own.
std::string WithoutUnassigned(std::string_view text) {
  static Regex unassigned(R"(\p{Cn}+)");
  std::string known;
  size_t from = 0;
  size_t begin = 0;
  size_t end = 0;
  while (unassigned.Find(text, from, &begin, &end)) {
    known += text.substr(from, begin - from);
    from = end;
  }
  return known.append(text.substr(from));
}

class CodePointSource {
 public:
  explicit CodePointSource(unsigned seed) : random_(seed) {}

  size_t Below(size_t limit) { return random_() % limit; }

  char32_t Next() {
    if (Below(4) != 0) return kEdgeCodePoints[Below(std::size(kEdgeCodePoints))];
    const auto c = static_cast<char32_t>(Below(Below(2) == 0 ? 0x3400 : 0x110000));
    return c >= 0xD800 && c <= 0xDFFF ? kReplacementCodePoint : c;
  }

 private:
  std::mt19937 random_;
};

TEST(PreTokenizer, EqualsTheRegexLibraryOnRandomText) {
  constexpr unsigned kSeed = 20250917;
  SCOPED_TRACE(kSeed);
  CodePointSource source(kSeed);
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    const size_t num_code_points = source.Below(24);
    while (text.size() < num_code_points) {
      // Runs, because most alternatives of the patterns are about runs.
      const char32_t c = source.Next();
      for (size_t repeat = source.Below(3) == 0 ? source.Below(5) : 1; repeat > 0; --repeat) {
        AppendUtf8(c, &text);
      }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectOraclePieces(WithoutUnassigned(text)));
  }
}

TEST(PreTokenizer, EqualsTheRegexLibraryOnPairsAndTriplesOfEdgeCodePoints) {
  std::vector<std::string> edges;
  for (const char32_t c : kEdgeCodePoints) AppendUtf8(c, &edges.emplace_back());
  for (const std::string& a : edges) {
    for (const std::string& b : edges) {
      ASSERT_NO_FATAL_FAILURE(ExpectOraclePieces(a + b));
      ASSERT_NO_FATAL_FAILURE(ExpectOraclePieces(a + b + "a"));
      ASSERT_NO_FATAL_FAILURE(ExpectOraclePieces("  " + a + b));
      ASSERT_NO_FATAL_FAILURE(ExpectOraclePieces(a + " \n " + b));
    }
  }
}

TEST(PreTokenizer, EqualsTheRegexLibraryOnTheRecordedTexts) {
  const boost::json::value cases = boost::json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/text/tokenizer_cases.json")));
  for (const boost::json::value& test_case : cases.as_array()) {
    const boost::json::value* text = test_case.as_object().if_contains("text");
    if (text == nullptr) continue;
    ASSERT_NO_FATAL_FAILURE(
        ExpectOraclePieces(WithoutUnassigned(std::string_view(text->as_string()))));
  }
}

TEST(PreTokenizer, PiecesOfAMixedSentence) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(Scan(PreTokenizerKind::kThreePass, "Hi  there, 12345 东京タワー!\n"),
            (Pieces{"Hi", " ", " there", ",", " ", "123", "45", " ", "东京タワー", "!\n"}));
  EXPECT_EQ(Scan(PreTokenizerKind::kByteLevel, "I'll pay  42$"),
            (Pieces{"I", "'ll", " pay", " ", " 42", "$"}));
  EXPECT_EQ(Scan(PreTokenizerKind::kThreePass, ""), Pieces());
}

TEST(CodePointTable, EqualsTheRegexLibraryOnEveryAssignedCodePoint) {
  Regex classes(R"((\p{L})|(\p{M})|(\p{N})|(\p{P}|\p{S})|([\r\n])|(\p{Z}|[\t-\r\x{85}])|(\p{Cn}))");
  constexpr CodePointClass kClassOfGroup[] = {
      CodePointClass::kOther,  CodePointClass::kLetter,      CodePointClass::kMark,
      CodePointClass::kNumber, CodePointClass::kPunctuation, CodePointClass::kNewline,
      CodePointClass::kSpace};
  constexpr int kUnassignedGroup = 7;
  const CodePointTable& table = CodePointTable::Get();
  size_t num_compared = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    AppendUtf8(c, &text);
    size_t begin = 0;
    size_t end = 0;
    int group = 0;
    classes.Find(text, 0, &begin, &end, &group);
    if (group == kUnassignedGroup) continue;
    ASSERT_EQ(table.Lookup(c), kClassOfGroup[group]) << std::hex << static_cast<uint32_t>(c);
    ++num_compared;
  }
  EXPECT_GT(num_compared, 280000u);
}

}  // namespace
}  // namespace deepinfer
