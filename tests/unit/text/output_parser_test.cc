#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <vector>

#include "text/special_tokens.h"
#include "unit/text/parser_test_util.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::Block;
using testing::EncodeWithSpecials;
using testing::Invoke;
using testing::Parameter;
using testing::ParsedCall;
using testing::ParsedOutput;
using testing::ParseEverySplit;
using testing::ParseIds;
using testing::Plain;
using testing::ReleasedTokenizer;
using testing::Thinking;
using testing::WithStops;
using testing::WithTools;

int32_t Count(const ParsedOutput& parsed, MalformedKind kind) { return parsed.malformed[kind]; }

// The end token never reaches the parser; the recorded texts spell it at the end.
std::string_view WithoutEnd(std::string_view text) {
  return text.substr(0, text.size() - (text.ends_with(kEosString) ? kEosString.size() : 0));
}

TEST(OutputParserTest, CompleteTextsGiveTheRecordedMessages) {
  const json::value cases = json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/text/parse_vectors.json")));
  ASSERT_EQ(cases.as_array().size(), 13u);
  for (const json::value& test : cases.as_array()) {
    const bool thinking = test.at("thinking_mode") == "thinking";
    const ParsedOutput parsed =
        ParseEverySplit(WithTools(thinking ? Thinking() : Plain()),
                        WithoutEnd(std::string_view(test.at("text").as_string())));
    const json::value& result = test.at("result");
    EXPECT_EQ(parsed.content, result.at("content").as_string()) << test.at("name");
    EXPECT_EQ(parsed.reasoning, result.at("reasoning_content").as_string()) << test.at("name");
    const json::array& calls = result.at("tool_calls").as_array();
    ASSERT_EQ(parsed.calls.size(), calls.size()) << test.at("name");
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(parsed.calls[i].name, calls[i].at("function").at("name").as_string());
      EXPECT_EQ(parsed.calls[i].arguments, calls[i].at("function").at("arguments").as_string());
    }
  }
}

TEST(OutputParserTest, LeadingNewlinesGoOnlyAtAStart) {
  EXPECT_EQ(ParseEverySplit(Plain(), "\n\n a\n").content, " a\n");
  ParserSettings continuation;
  continuation.start = ParserStart::kContentContinuation;
  EXPECT_EQ(ParseEverySplit(continuation, "\n\n a").content, "\n\n a");
  EXPECT_EQ(ParseEverySplit(Thinking(), "\n\nr\n\n</think>\n\nc").reasoning, "r");
  continuation.start = ParserStart::kReasoningContinuation;
  const ParsedOutput parsed = ParseEverySplit(continuation, "\nr\n</think>\nc");
  EXPECT_EQ(parsed.reasoning, "\nr");
  EXPECT_EQ(parsed.content, "c");
}

TEST(OutputParserTest, HeldNewlinesAreShownWhenNoMarkerFollows) {
  EXPECT_EQ(ParseEverySplit(Thinking(), "a\n\nb\n").reasoning, "a\n\nb\n");
  EXPECT_EQ(ParseEverySplit(WithTools(), "a\n\nb\n\n<x").content, "a\n\nb\n\n<x");
  EXPECT_EQ(ParseEverySplit(WithTools(), "a\n\n<").content, "a\n\n<");
}

TEST(OutputParserTest, OnlyNewlinesAreTrimmedBeforeABlock) {
  const ParsedOutput parsed = ParseEverySplit(WithTools(), "c \n\n " + Block(Invoke("f", "")));
  EXPECT_EQ(parsed.content, "c \n\n ");
  EXPECT_EQ(ParseEverySplit(WithTools(), "c \n\n\n" + Block(Invoke("f", ""))).content, "c ");
}

TEST(OutputParserTest, WithoutToolsMarkupIsText) {
  const std::string block = "\n\n" + Block(Invoke("f", Parameter("a", true, "x")));
  EXPECT_EQ(ParseEverySplit(Plain(), "c" + block).content, "c" + block);
  EXPECT_EQ(ParseEverySplit(Thinking(), "r" + block).reasoning, "r" + block);
}

TEST(OutputParserTest, ABareMarkerWordIsText) {
  EXPECT_EQ(ParseEverySplit(WithTools(), "a ｜DSML｜ b").content, "a ｜DSML｜ b");
  EXPECT_EQ(ParseEverySplit(WithTools(), "a </｜DSML｜ b").content, "a </｜DSML｜ b");
}

TEST(OutputParserTest, CallsCarryTheirArgumentsAsJson) {
  const ParsedOutput parsed = ParseEverySplit(
      WithTools(), Block(Invoke("f", Parameter("s", true, "q\" b\\ \n\t\x01 é 😀") + "\n" +
                                         Parameter("n", false, "[1, {\"k\": null}]")) +
                         "\n" + Invoke("g", "")));
  ASSERT_EQ(parsed.calls.size(), 2u);
  EXPECT_EQ(
      parsed.calls[0],
      (ParsedCall{"f", "{\"s\": \"q\\\" b\\\\ \\n\\t\\u0001 é 😀\", \"n\": [1, {\"k\": null}]}",
                  true}));
  EXPECT_EQ(parsed.calls[1], (ParsedCall{"g", "{}", true}));
  EXPECT_EQ(parsed.order, "SAESAE");
  EXPECT_FALSE(parsed.malformed.any());
}

TEST(OutputParserTest, StartsInsideTheBlockWhenThePromptOpenedIt) {
  ParserSettings settings = WithTools();
  settings.starts_in_tool_calls = true;
  const std::string calls = Invoke("f", Parameter("a", false, "1")) + "\n</｜DSML｜ calls>";
  EXPECT_EQ(ParseEverySplit(settings, calls).calls[0].arguments, "{\"a\": 1}");
  EXPECT_EQ(ParseEverySplit(settings, "<｜DSML｜ calls>\n" + calls).calls.size(), 1u);
  EXPECT_EQ(ParseEverySplit(settings, "hello").order, "");
}

TEST(OutputParserTest, StopStringsAreReadInContentOnly) {
  const ParsedOutput parsed = ParseEverySplit(WithStops({"END"}, Thinking()), "rEND</think>cEND!");
  EXPECT_EQ(parsed.reasoning, "rEND");
  EXPECT_EQ(parsed.content, "c");
  EXPECT_EQ(parsed.stop, "END");
  const ParsedOutput calls = ParseEverySplit(
      WithTools(WithStops({"x"})), "c\n\n" + Block(Invoke("f", Parameter("a", true, "x"))));
  EXPECT_EQ(calls.stop, "");
  EXPECT_EQ(calls.calls[0].arguments, "{\"a\": \"x\"}");
}

TEST(OutputParserTest, LeadingNewlinesAreGoneBeforeStopStringsAreRead) {
  EXPECT_EQ(ParseEverySplit(WithStops({"\nq"}), "\nq rest").content, "q rest");
  EXPECT_EQ(ParseEverySplit(WithStops({"\n\n"}), "a\n\nb").content, "a");
  EXPECT_EQ(ParseEverySplit(WithTools(WithStops({"\n\n"})), "a\n\nb").content, "a");
  EXPECT_EQ(ParseEverySplit(WithTools(WithStops({"\n\n"})), "a\n\n").content, "a");
}

TEST(OutputParserTest, ABegunStopStringIsShownBeforeACallAndAtTheEnd) {
  const ParsedOutput parsed =
      ParseEverySplit(WithTools(WithStops({"END"})), "aEN" + Block(Invoke("f", "")));
  EXPECT_EQ(parsed.content, "aEN");
  EXPECT_EQ(parsed.order, "CSAE");
  EXPECT_EQ(ParseEverySplit(WithStops({"END"}), "aEN").content, "aEN");
}

TEST(OutputParserTest, TheStopStringStaysWhenAskedFor) {
  ParserSettings settings = WithStops({"END"});
  settings.include_stop_string = true;
  const ParsedOutput parsed = ParseEverySplit(settings, "aEND b");
  EXPECT_EQ(parsed.content, "aEND");
  EXPECT_EQ(parsed.stop, "END");
}

TEST(OutputParserTest, NoStopStringEndsInTheFirstTokensWhateverTheSteps) {
  const std::string text = "one END two END three";
  const std::vector<int32_t> ids = EncodeWithSpecials(ReleasedTokenizer(), text);
  const std::vector<int32_t> head = EncodeWithSpecials(ReleasedTokenizer(), "one END");
  ASSERT_TRUE(std::equal(head.begin(), head.end(), ids.begin()));
  const auto first_end = static_cast<int64_t>(head.size());  // tokens up to the first "END"
  const auto parse = [&](int64_t num_tokens_without_stop, size_t group) {
    ParserSettings settings = WithStops({"END"});
    settings.num_tokens_without_stop = num_tokens_without_stop;
    return ParseIds(settings, ids, group).content;
  };
  for (size_t group = 1; group <= ids.size(); ++group) {
    EXPECT_EQ(parse(0, group), "one ");
    EXPECT_EQ(parse(first_end - 1, group), "one ");
    EXPECT_EQ(parse(first_end, group), "one END two ");
    EXPECT_EQ(parse(static_cast<int64_t>(ids.size()), group), text);
  }
  // One that begins there may end behind.
  ParserSettings settings = WithStops({"END two"});
  settings.num_tokens_without_stop = first_end;
  EXPECT_EQ(ParseIds(settings, ids, 1).content, "one ");
}

TEST(OutputParserTest, HeldTextBelongsToTheTokenItCameFrom) {
  // The newlines are held back until it is known that no marker follows them.
  ParserSettings settings = WithTools(WithStops({"\n\n"}));
  const std::vector<int32_t> ids = EncodeWithSpecials(ReleasedTokenizer(), "a\n\nb");
  ASSERT_EQ(ids.size(), 3u);
  settings.num_tokens_without_stop = 1;
  EXPECT_EQ(ParseIds(settings, ids, 1).content, "a");
  settings.num_tokens_without_stop = 2;
  EXPECT_EQ(ParseIds(settings, ids, 1).content, "a\n\nb");
}

TEST(OutputParserTest, TokensOfReasoningCountBeforeAStopString) {
  const std::vector<int32_t> ids = EncodeWithSpecials(ReleasedTokenizer(), "r</think>END!");
  ParserSettings settings = WithStops({"END"}, Thinking());
  settings.num_tokens_without_stop = 2;
  EXPECT_EQ(ParseIds(settings, ids, 1).stop, "END");
  settings.num_tokens_without_stop = static_cast<int64_t>(ids.size());
  EXPECT_EQ(ParseIds(settings, ids, 1).content, "END!");
}

TEST(OutputParserTest, JsonIsCutOutOfTextAndFences) {
  ParserSettings settings;
  settings.parse_json_output = true;
  const auto extract = [&](std::string_view text) {
    const std::string whole = testing::ParseText(settings, text).content;
    const std::string single = testing::ParsePieces(settings, testing::Characters(text)).content;
    const auto trim = [](std::string s) {
      const size_t begin = s.find_first_not_of(' ');
      if (begin == std::string::npos) return std::string();
      return s.substr(begin, s.find_last_not_of(' ') + 1 - begin);
    };
    EXPECT_EQ(trim(whole), trim(single)) << text;
    return trim(whole);
  };
  EXPECT_EQ(extract("text {\"a\":1} tail"), "{\"a\":1} tail");
  EXPECT_EQ(extract("x\n```json\n{\"a\": \"```\"}\n```\ny"), "{\"a\": \"```\"}");
  EXPECT_EQ(extract("```\n[1,\n``2]\n```"), "[1,\n``2]");
  EXPECT_EQ(extract("```json{\"a\":1}```"), "{\"a\":1}```");
  EXPECT_EQ(extract("```python\nprint()\n```\n{\"a\":1}"), "{\"a\":1}");
  EXPECT_EQ(extract("no json"), "");
  EXPECT_EQ(extract("```json\n{\"a\":1}\n``"), "{\"a\":1}\n``");
}

TEST(OutputParserTest, NewlinesBesideAStrayThinkEndStay) {
  for (const auto& [text, content] :
       {std::pair("r</think>\n\n</think>\n\nA", "\n\nA"), std::pair("r</think></think>\nA", "\nA"),
        std::pair("r</think>a\n</think>\nA", "a\n\nA")}) {
    EXPECT_EQ(ParseEverySplit(Thinking(), text).content, content) << text;
  }
}

TEST(OutputParserTest, MalformedOutputIsCountedByKind) {
  struct Row {
    ParserSettings settings;
    std::string text;
    MalformedKind kind;
  };
  const std::string call = Invoke("f", Parameter("a", true, "x"));
  const std::vector<Row> rows = {
      {Thinking(), "r", MalformedKind::kNoThinkEnd},
      {WithTools(Thinking()), "r\n\n" + Block(call), MalformedKind::kBlockInReasoning},
      {Plain(), "a</think>b", MalformedKind::kStrayThinkEnd},
      {WithTools(), "<｜DSML｜ calls>\n" + call, MalformedKind::kUnclosedBlock},
      {WithTools(), "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n",
       MalformedKind::kTruncatedCall},
      {WithTools(), "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f", MalformedKind::kTruncatedOpener},
      {WithTools(), "<｜DSML｜ ca", MalformedKind::kTruncatedOpener},
      {WithTools(), Block("<｜DSML｜ invoke name='f'>\n</｜DSML｜ invoke>"),
       MalformedKind::kMalformedBlock},
      {WithTools(), Block("junk" + call), MalformedKind::kJunk},
      {WithTools(), Block(call) + "tail", MalformedKind::kJunk},
      {WithTools(), Block(Invoke("f", "{\"a\": 1}")), MalformedKind::kJunk},
      {WithTools(),
       Block(Invoke("f", Parameter("a", true, "1") + "\n" + Parameter("a", true, "2"))),
       MalformedKind::kDuplicateParameter},
      {WithTools(), Block(Invoke("f", Parameter("a", false, "{bad"))),
       MalformedKind::kBadJsonValue},
      {WithTools(), Block(Invoke("f", Parameter("a", false, "1 2"))), MalformedKind::kBadJsonValue},
      {WithTools(), Block(Invoke("f", Parameter("a", false, ""))), MalformedKind::kBadJsonValue},
      {WithTools(),
       Block(Invoke("f", "<｜DSML｜ parameter string=\"true\" name=\"a\">x</｜DSML｜ parameter>")),
       MalformedKind::kBadParameter},
      {WithTools(), Block(Invoke("f", "<｜DSML｜ parameter name=\"a\">x</｜DSML｜ parameter>")),
       MalformedKind::kBadParameter},
      {WithTools(),
       Block(Invoke("f", "<｜DSML｜ parameter name=\"a\" string=\"maybe\">x</｜DSML｜ parameter>")),
       MalformedKind::kBadParameter},
  };
  for (const Row& row : rows) {
    const ParsedOutput parsed = ParseEverySplit(row.settings, row.text);
    MalformedCounts expected;
    expected.Add(row.kind);
    EXPECT_EQ(parsed.malformed.count, expected.count) << row.text << "\n" << parsed;
  }
}

TEST(OutputParserTest, WellFormedOutputIsCountedAsNothing) {
  EXPECT_FALSE(ParseEverySplit(Thinking(), "r</think>c").malformed.any());
  const ParsedOutput parsed = ParseEverySplit(
      WithTools(Thinking()),
      "r\n</think>\n\nc\n\n" +
          Block(Invoke("f", Parameter("a", false, " [1, 2] ")) + "\n" + Invoke("g", "")));
  EXPECT_FALSE(parsed.malformed.any()) << parsed;
}

TEST(OutputParserTest, ASkippedParameterLeavesTheOthers) {
  const ParsedOutput parsed = ParseEverySplit(
      WithTools(),
      Block(Invoke("f", "<｜DSML｜ parameter name=\"a\" string=\"maybe\">1</｜DSML｜ parameter>\n" +
                            Parameter("b", false, "2"))));
  EXPECT_EQ(parsed.calls[0].arguments, "{\"b\": 2}");
  EXPECT_EQ(Count(parsed, MalformedKind::kBadParameter), 1);
}

TEST(OutputParserTest, MarkersSpeltWithOrdinaryTokensAreText) {
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  const std::string text = "a</think>b\n\n" + Block(Invoke("f", ""));
  const std::vector<int32_t> ids = testing::Encode(tokenizer, text);
  for (size_t group = 1; group <= 8; ++group) {
    const ParsedOutput parsed = testing::ParseIds(WithTools(Thinking()), ids, group);
    EXPECT_EQ(parsed.reasoning, text);
    EXPECT_EQ(parsed.order, "R");
  }
}

TEST(OutputParserTest, TextItemsAndTokensMix) {
  OutputPipeline pipeline(testing::ReleasedTokenizer(), testing::WithIds(WithTools(Thinking())));
  ParsedOutput parsed;
  std::vector<OutputEvent> events;
  pipeline.PushText("reason</thi", &events);
  const std::vector<int32_t> think_end = {testing::kThinkEndId};
  pipeline.Push(think_end, &events);
  pipeline.PushText("c\n\n<", &events);
  const std::vector<int32_t> dsml = {testing::kDsmlId};
  pipeline.Push(dsml, &events);
  pipeline.PushText(" calls>\n" + Invoke("f", "") + "\n</｜DSML｜ calls>", &events);
  pipeline.Finish(&events);
  testing::AddEvents(events, &parsed);
  EXPECT_EQ(parsed.reasoning, "reason</thi");
  EXPECT_EQ(parsed.content, "c");
  EXPECT_EQ(parsed.calls.size(), 1u);
}

}  // namespace
}  // namespace deepinfer
