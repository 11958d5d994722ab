#include "text/sampled_turn.h"

#include <gtest/gtest.h>

#include "text/prompt_encoder.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

using testing::DemoTokenizer;

// A block whose second value is spaced as no renderer of ours would.
constexpr std::string_view kCalls =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"b\" string=\"true\">x</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"a\" string=\"false\">{\"n\":1.0,  \"m\": [2,3]}</｜DSML｜ "
    "parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>";

SpecialTokens Specials() {
  Result<SpecialTokens> special = SpecialTokens::Resolve(DemoTokenizer());
  EXPECT_TRUE(special.ok());
  return special.ok() ? *special : SpecialTokens();
}

// Every character a token of its own, as the model may sample them.
std::vector<int32_t> Sampled(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t size = 1;
    for (const std::string_view token : {kThinkBeginString, kThinkEndString, kDsmlString}) {
      if (text.starts_with(token)) size = token.size();
    }
    DemoTokenizer().EncodeWithSpecials(text.substr(0, size), &ids);
    text.remove_prefix(size);
  }
  ids.push_back(Specials().eos);
  return ids;
}

AssistantTurn Turn(std::string reasoning, std::string text, std::string arguments) {
  AssistantTurn turn;
  turn.reasoning = std::move(reasoning);
  turn.text = std::move(text);
  turn.calls = {{"id", "f", std::move(arguments)}};
  return turn;
}

// The ids behind a header that the turn is rendered as; nothing when it is not the sampled one.
std::optional<std::vector<int32_t>> Restore(std::span<const int32_t> ids, const AssistantTurn& turn,
                                            bool keep_reasoning = true) {
  const auto segments = RestoreSampledTurn(DemoTokenizer(), Specials(), ids, turn, keep_reasoning);
  if (!segments) return std::nullopt;
  const auto encoded = EncodeSegments(DemoTokenizer(), *segments);
  EXPECT_TRUE(encoded.ok());
  return *encoded;
}

TEST(SampledTurn, JsonIsComparedByValue) {
  EXPECT_TRUE(IsEqualJson(R"({"a": 1, "b": [true, null]})", R"({"b":[true,null],"a":1.0})"));
  EXPECT_TRUE(IsEqualJson("\"\\u00e9\"", "\"é\""));
  EXPECT_FALSE(IsEqualJson("[1, 2]", "[2, 1]"));
  EXPECT_FALSE(IsEqualJson(R"({"a": 1})", R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(IsEqualJson(R"({"a": 1})", R"({"a": "1"})"));
  EXPECT_FALSE(IsEqualJson("9007199254740993", "9007199254740992"));
  EXPECT_FALSE(IsEqualJson("{", "{"));
}

TEST(SampledTurn, J05_ReserialisedArgumentsGiveTheSampledTokensBack) {
  const std::vector<int32_t> ids = Sampled("<think>Why?</think>Now." + std::string(kCalls));
  for (const char* arguments :
       {R"({"b": "x", "a": {"n":1.0,  "m": [2,3]}})", R"({"a":{"m":[2,3],"n":1},"b":"x"})"}) {
    EXPECT_EQ(Restore(ids, Turn("Why?", "Now.", arguments)), ids) << arguments;
  }
}

TEST(SampledTurn, ChangedTurnsAreTheClients) {
  const std::vector<int32_t> ids = Sampled("<think>Why?</think>Now." + std::string(kCalls));
  const std::string same = R"({"b": "x", "a": {"n": 1, "m": [2, 3]}})";
  EXPECT_TRUE(Restore(ids, Turn("Why?", "Now.", same)));
  EXPECT_FALSE(Restore(ids, Turn("Why?", "Now.", R"({"b": "y", "a": {"n": 1, "m": [2, 3]}})")));
  EXPECT_FALSE(Restore(ids, Turn("Why?", "Then.", same)));
  AssistantTurn renamed = Turn("Why?", "Now.", same);
  renamed.calls[0].name = "g";
  EXPECT_FALSE(Restore(ids, renamed));
  AssistantTurn fewer = Turn("Why?", "Now.", same);
  fewer.calls.clear();
  EXPECT_FALSE(Restore(ids, fewer));
}

TEST(SampledTurn, ReasoningThatWasLeftOutComesBackAndOneThatWasChangedStays) {
  const std::vector<int32_t> ids = Sampled("<think>Why?</think>Now." + std::string(kCalls));
  const std::string arguments = R"({"b": "x", "a": {"n": 1, "m": [2, 3]}})";
  EXPECT_EQ(Restore(ids, Turn("", "Now.", arguments)), ids);

  std::vector<int32_t> changed = {Specials().think_begin};
  DemoTokenizer().EncodeText("Because.", &changed);
  const std::vector<int32_t> behind = Sampled("</think>Now." + std::string(kCalls));
  changed.insert(changed.end(), behind.begin(), behind.end());
  EXPECT_EQ(Restore(ids, Turn("Because.", "Now.", arguments)), changed);

  EXPECT_EQ(Restore(ids, Turn("Why?", "Now.", arguments), /*keep_reasoning=*/false), behind);
}

TEST(SampledTurn, ATurnWithoutThinkingKeepsItsTokens) {
  const std::vector<int32_t> ids = Sampled("</think>" + std::string(kCalls));
  const AssistantTurn turn = Turn("", "", R"({"b": "x", "a": {"n": 1, "m": [2, 3]}})");
  EXPECT_EQ(Restore(ids, turn, /*keep_reasoning=*/false), ids);
}

TEST(SampledTurn, ABlockThatCutsTheReasoningShortIsReplayedAsAWholeOnly) {
  const std::vector<int32_t> ids = Sampled("<think>Why?" + std::string(kCalls));
  const AssistantTurn turn = Turn("Why?", "", R"({"b": "x", "a": {"n": 1, "m": [2, 3]}})");
  EXPECT_EQ(Restore(ids, turn), ids);
  EXPECT_FALSE(Restore(ids, turn, /*keep_reasoning=*/false));
}

TEST(SampledTurn, ArgumentsThatAreNoJsonMatchTheirTextAndTheEmptyObject) {
  const std::vector<int32_t> ids = Sampled(
      "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
      "<｜DSML｜ parameter name=\"a\" string=\"false\">{oops</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  EXPECT_EQ(Restore(ids, Turn("", "", "{\"a\": {oops}"), false), ids);
  EXPECT_EQ(Restore(ids, Turn("", "", "{}"), false), ids);
  EXPECT_FALSE(Restore(ids, Turn("", "", "{\"a\": 1}"), false));
}

}  // namespace
}  // namespace deepinfer
