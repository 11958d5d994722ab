#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

std::string Utf8(char32_t code_point) {
  std::string text;
  AppendUtf8(code_point, &text);
  return text;
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    const std::string text = Utf8(c);
    const Utf8Char decoded = DecodeUtf8(text, 0);
    ASSERT_EQ(decoded.status, Utf8Status::kValid) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.size_bytes, text.size());
  }
}

TEST(Utf8, WhatIsNoScalarValueIsWrittenAsReplacement) {
  EXPECT_EQ(Utf8(0xD800), kReplacementUtf8);
  EXPECT_EQ(Utf8(0xDFFF), kReplacementUtf8);
  EXPECT_EQ(Utf8(0x110000), kReplacementUtf8);
}

TEST(Utf8, EachMaximalSubpartBecomesOneReplacement) {
  // {input, with "?" for U+FFFD}
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"\x80", "?"},
      {"a\xC3", "a?"},
      {"\xE4\xB8", "?"},
      {"\xF0\x9F\x91", "?"},
      {"\xFF\xFE\xFD", "???"},
      {"\xC0\xAF\xE0\x80\xAF", "?????"},
      {"\xED\xA0\x80", "???"},
      {"\xF4\x90\x80\x80", "????"},
      // The example of table 3-8 of the Unicode standard.
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a???b?c??d"},
  };
  for (const auto& [input, expected] : cases) {
    std::string replaced;
    for (const char c : expected) {
      c == '?' ? replaced += kReplacementUtf8 : replaced += c;
    }
    EXPECT_EQ(ReplaceInvalidUtf8(input), replaced);
    EXPECT_EQ(IsValidUtf8(input), input == replaced);
  }
}

TEST(Utf8, ValidPrefixEndsBeforeTheFirstBrokenSequence) {
  EXPECT_EQ(ValidUtf8Prefix("ab\xE4\xB8\xAD\xE4\xB8"), 5u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xE4\xB8\xAD"), 5u);
  EXPECT_EQ(ValidUtf8Prefix("\xBF"), 0u);
}

TEST(Utf8, StatusTellsUnfinishedFromBroken) {
  EXPECT_EQ(DecodeUtf8("\xF0\x9F", 0).status, Utf8Status::kIncomplete);
  EXPECT_EQ(DecodeUtf8("\xF0\x9F", 0).size_bytes, 2u);
  EXPECT_EQ(DecodeUtf8("\xF0\x80", 0).status, Utf8Status::kInvalid);
  EXPECT_EQ(DecodeUtf8("\xF0\x80", 0).size_bytes, 1u);
}

TEST(Utf8, DrainingInPiecesEqualsReplacingTheWhole) {
  constexpr char kBytes[] = {'a',    '\x80', '\xBF', '\xC0', '\xC3', '\xE0', '\xA0', '\xED',
                             '\x9F', '\xE4', '\xF0', '\x90', '\xF4', '\x8F', '\xF5', '\xFF'};
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string whole;
    std::string pending;
    std::string drained;
    for (int i = 0; i < 20; ++i) {
      const char byte = kBytes[random() % std::size(kBytes)];
      whole += byte;
      pending += byte;
      if (random() % 2 == 0) DrainCompleteUtf8(&pending, &drained);
    }
    DrainCompleteUtf8(&pending, &drained);
    ASSERT_LE(pending.size(), 3u);
    ASSERT_EQ(drained + ReplaceInvalidUtf8(pending), ReplaceInvalidUtf8(whole));
  }
}

}  // namespace
}  // namespace deepinfer
