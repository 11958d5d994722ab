#include "text/prompt_encoder.h"

#include <gtest/gtest.h>

#include "text/special_tokens.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

using testing::Encode;
using testing::ReleasedTokenizer;
using testing::TinyTokenizer;

Segment Special(std::string_view token) {
  return {Segment::Kind::kSpecial, std::string(token), -1};
}
Segment Text(std::string text) { return {Segment::Kind::kText, std::move(text), -1}; }
Segment Image(int32_t index) { return {Segment::Kind::kImage, "", index}; }

TEST(PromptEncoder, RangesCountCodePoints) {
  const PromptText prompt = BuildPromptText(
      {Special(kUserString), Text("é👍"), Image(3), Text("x"), Special(kThinkEndString)}, "<i>");
  EXPECT_EQ(prompt.prompt, "<｜User｜>é👍<i>x</think>");
  EXPECT_EQ(prompt.special_ranges,
            (std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {10, 13}, {14, 22}}));
  EXPECT_EQ(prompt.image_indexes, (std::vector<int32_t>{3}));
}

TEST(PromptEncoder, NeighbouringTextIsEncodedInOnePass) {
  const auto ids = EncodeSegments(ReleasedTokenizer(), {Text("hel"), Text("lo wor"), Text("ld")});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, Encode(ReleasedTokenizer(), "hello world"));
}

TEST(PromptEncoder, SpecialsAndImagesAreSingleIdsAndTextNeverIs) {
  const auto ids =
      EncodeSegments(ReleasedTokenizer(), {Special(kUserString), Text("<｜User｜>"), Image(0)});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), 128803);
  EXPECT_EQ(ids->back(), 129264);
  EXPECT_GT(ids->size(), 4u);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 128803), 1);
}

TEST(PromptEncoder, L01_TypedPlaceholderIsText) {
  for (const char* typed : {"<｜deepseek_image｜>", "<｜image｜>", "a<｜deepseek_image｜>b"}) {
    const auto ids = EncodeSegments(ReleasedTokenizer(), {Text(typed), Image(0)});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(std::count(ids->begin(), ids->end(), 129264), 1) << typed;
    EXPECT_EQ(ids->back(), 129264);
  }
}

TEST(PromptEncoder, MissingSpecialTokenIsUnsupported) {
  const auto ids = EncodeSegments(TinyTokenizer(), {Special(kUserString)});
  EXPECT_EQ(ids.status().code(), StatusCode::kUnsupported);
}

TEST(PromptEncoder, SampledTextKeepsItsTokens) {
  Segment sampled = Text("hello");
  for (const char letter : sampled.text) {
    const std::vector<int32_t> id = Encode(ReleasedTokenizer(), std::string(1, letter));
    sampled.ids.insert(sampled.ids.end(), id.begin(), id.end());
  }
  const auto ids = EncodeSegments(ReleasedTokenizer(), {Text("say "), sampled, Text("hello")});
  ASSERT_TRUE(ids.ok());
  std::vector<int32_t> expected = Encode(ReleasedTokenizer(), "say ");
  expected.insert(expected.end(), sampled.ids.begin(), sampled.ids.end());
  for (const int32_t id : Encode(ReleasedTokenizer(), "hello")) expected.push_back(id);
  EXPECT_EQ(*ids, expected);
}

TEST(PromptEncoder, ResumePointsAreTokensInFrontOfThem) {
  Segment begin = Special(kUserString);
  begin.resume_points = {0};
  Segment text = Text("hello world again");
  // Behind "hello", inside " world", at the end.
  text.resume_points = {5, 8, 17};
  Segment image = Image(0);
  image.resume_points = {0};
  std::vector<int32_t> points;
  const auto ids = EncodeSegments(ReleasedTokenizer(), {begin, text, image}, &points);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 5u);
  EXPECT_EQ(points, (std::vector<int32_t>{1, 2, 2, 4, 5}));
}

}  // namespace
}  // namespace deepinfer
