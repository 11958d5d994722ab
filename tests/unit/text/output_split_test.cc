// The recorded streams and random markup, cut in every way: the events never depend on the cuts.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <boost/json.hpp>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "unit/text/parser_test_util.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::ParsedOutput;

ParserSettings SettingsOf(const json::value& parsing) {
  ParserSettings settings;
  const json::value& stage = parsing.at("thinking_initial_stage");
  if (stage == "reasoning_start") settings.start = ParserStart::kReasoningStart;
  if (stage == "reasoning_continuation") settings.start = ParserStart::kReasoningContinuation;
  if (stage == "content_continuation") settings.start = ParserStart::kContentContinuation;
  settings.parse_tool_calls = parsing.at("parse_tool_calls").as_bool();
  settings.starts_in_tool_calls = parsing.at("starts_in_tool_calls").as_bool();
  for (const json::value& stop : parsing.at("stop_sequences").as_array()) {
    settings.stop_strings.emplace_back(stop.as_string());
  }
  return settings;
}

TEST(OutputSplitTest, RecordedTextsParseAlikeHoweverTheyAreCut) {
  std::ifstream file(testing::SourcePath("tests/data/text/recipe_stream_chat.jsonl"));
  std::set<std::string> seen;
  std::string line;
  while (std::getline(file, line)) {
    const json::value test = json::parse(line);
    std::string text;
    for (const json::value& chunk : test.at("chunks").as_array()) {
      if (chunk.is_string()) text += chunk.as_string();
    }
    // Extraction shows a space per step and is tested on its own.
    if (test.at("parsing").at("parse_json_output").as_bool()) continue;
    if (text.empty() || !seen.insert(text + json::serialize(test.at("parsing"))).second) continue;
    testing::ParseEverySplit(SettingsOf(test.at("parsing")), text);
  }
  EXPECT_GE(seen.size(), 70u);
}

TEST(OutputSplitTest, RandomMarkupParsesAlikeHoweverItIsCut) {
  static const std::vector<std::string> kParts = {
      "<",
      "/",
      "</",
      "｜DSML｜",
      "｜",
      "DSML",
      " ",
      "calls",
      "tool_calls",
      "invoke",
      "parameter",
      " name=\"",
      "f",
      "\"",
      " string=\"",
      "true",
      "false",
      ">",
      "\n",
      "\n\n",
      "x",
      "{",
      "}",
      "1",
      "<｜DSML｜ calls>",
      "</｜DSML｜ calls>",
      "<｜DSML｜ invoke name=\"f\">",
      "</｜DSML｜ invoke>",
      "<｜DSML｜ parameter name=\"a\" string=\"true\">",
      "<｜DSML｜ parameter name=\"b\" string=\"false\">",
      "</｜DSML｜ parameter>",
      "</think>",
      "<think>",
      "é",
      "😀"};
  EXPECT_TRUE(rc::check([] {
    ParserSettings settings;
    settings.start = *rc::gen::element(ParserStart::kContentStart, ParserStart::kReasoningStart,
                                       ParserStart::kContentContinuation);
    settings.parse_tool_calls = *rc::gen::arbitrary<bool>();
    settings.starts_in_tool_calls = *rc::gen::weightedElement<bool>({{4, false}, {1, true}});
    if (*rc::gen::arbitrary<bool>()) settings.stop_strings = {"xx", "x\n", "\n\n"};
    const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kParts));
    std::string text;
    for (const std::string& part : parts) text += part;
    const ParsedOutput whole = testing::ParseText(settings, text);
    RC_ASSERT(testing::ParsePieces(settings, testing::Characters(text)) == whole);
    RC_ASSERT(testing::ParsePieces(settings, parts) == whole);
    const std::vector<int32_t> ids =
        testing::EncodeWithSpecials(testing::ReleasedTokenizer(), text);
    for (size_t group : {size_t{1}, size_t{3}, size_t{8}}) {
      RC_ASSERT(testing::ParseIds(settings, ids, group) == whole);
    }
  }));
}

// Tokens that text came from: shown once each, in order, and the same ones whatever the steps.
TEST(OutputSplitTest, TokensOfTextDoNotDependOnTheSteps) {
  ParserSettings settings = testing::WithIds(testing::WithTools(testing::Thinking()));
  settings.stop_strings = {"STOP"};
  const std::string text =
      "\nthink 🦜\n</think>\n\nsay 뷁\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>";
  const std::vector<int32_t> ids = testing::EncodeWithSpecials(testing::ReleasedTokenizer(), text);
  std::vector<std::vector<int64_t>> first;
  for (size_t group = 1; group <= 8; ++group) {
    OutputPipeline pipeline(testing::ReleasedTokenizer(), settings);
    pipeline.TrackTokens();
    std::vector<std::vector<int64_t>> tokens(2);
    std::string shown_bytes;
    for (size_t i = 0; i < ids.size(); i += group) {
      std::vector<OutputEvent> events;
      pipeline.Push(std::span(ids).subspan(i, std::min(group, ids.size() - i)), &events);
      for (const OutputEvent& event : events) {
        auto& list = tokens[event.kind == OutputEventKind::kContent ? 1 : 0];
        list.insert(list.end(), event.tokens.begin(), event.tokens.end());
      }
    }
    if (group == 1) first = tokens;
    EXPECT_EQ(tokens, first);
    for (const auto& list : tokens) {
      EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
      for (int64_t token : list) {
        const int32_t id = ids[static_cast<size_t>(token)];
        EXPECT_NE(id, testing::kThinkEndId);
        EXPECT_NE(id, testing::kDsmlId);
      }
    }
  }
  std::string reasoning;
  for (int64_t token : first[0]) {
    reasoning += testing::ReleasedTokenizer().TokenBytes(ids[static_cast<size_t>(token)]);
  }
  EXPECT_EQ(reasoning, "think 🦜");
}

}  // namespace
}  // namespace deepinfer
