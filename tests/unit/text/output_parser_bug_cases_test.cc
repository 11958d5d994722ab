// Publicly reported failures of other servers, reduced to the parser (rows A and B).
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "unit/text/parser_test_util.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::Block;
using testing::Invoke;
using testing::Parameter;
using testing::ParsedOutput;
using testing::ParseEverySplit;
using testing::Plain;
using testing::Thinking;
using testing::WithStops;
using testing::WithTools;

// Content shown after each piece.
std::vector<std::string> ShownAfterEach(const ParserSettings& settings,
                                        const std::vector<std::string>& pieces) {
  OutputParser parser(settings);
  std::vector<std::string> shown;
  ParsedOutput parsed;
  for (const std::string& piece : pieces) {
    std::vector<OutputEvent> events;
    parser.PushText(piece, &events);
    testing::AddEvents(events, &parsed);
    shown.push_back(parsed.content);
  }
  return shown;
}

bool IsJsonObject(std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  return !error && value.is_object();
}

TEST(OutputParserBugCases, A01_StopStringHeldBack) {
  const ParsedOutput parsed = ParseEverySplit(WithStops({"DEFGHIJ"}), "ABCDEFGHIJK");
  EXPECT_EQ(parsed.content, "ABC");
  EXPECT_EQ(parsed.stop, "DEFGHIJ");
  EXPECT_EQ(ShownAfterEach(WithStops({"DEFGHIJ"}), {"ABCD", "EFG", "HI", "J", "K"}),
            (std::vector<std::string>(5, "ABC")));
  // Text that only begins the stop string comes out as soon as it cannot match any more.
  EXPECT_EQ(ShownAfterEach(WithStops({"DEFGHIJ"}), {"ABCD", "EX"}),
            (std::vector<std::string>{"ABC", "ABCDEX"}));
  EXPECT_EQ(ParseEverySplit(WithStops({"aab"}), "aaab!").content, "a");
  EXPECT_EQ(ParseEverySplit(WithStops({"abab"}), "ababab").content, "");
}

TEST(OutputParserBugCases, A02_StopAcrossThreeTokens) {
  const std::string text = "Thought: look\nObservation: 42";
  const ParsedOutput parsed = ParseEverySplit(WithStops({"\nObservation"}), text);
  EXPECT_EQ(parsed.content, "Thought: look");
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  EXPECT_GE(testing::Encode(tokenizer, "\nObservation").size(), 2u);
}

TEST(OutputParserBugCases, A05_StopStringWithAndWithoutItself) {
  ParserSettings settings = WithStops({"END"});
  EXPECT_EQ(ParseEverySplit(settings, "xEND").content, "x");
  settings.include_stop_string = true;
  EXPECT_EQ(ParseEverySplit(settings, "xEND").content, "xEND");
}

TEST(OutputParserBugCases, A06_SpeltEndMarkerIsText) {
  const std::string text = "a<｜end▁of▁sentence｜>b</think>c";
  const std::vector<int32_t> ids = testing::Encode(testing::ReleasedTokenizer(), text);
  for (size_t group = 1; group <= 8; ++group) {
    EXPECT_EQ(testing::ParseIds(Plain(), ids, group).content, text);
  }
  // The marker's own id never shows.
  const std::vector<int32_t> with_marker = {testing::kThinkEndId};
  EXPECT_EQ(testing::ParseIds(Plain(), with_marker, 1).content, "");
}

TEST(OutputParserBugCases, A09_NoReplacementCharacterForSplitCodePoints) {
  const std::string text = "中文：🎉👩‍👩‍👧 完。";
  std::vector<int32_t> bytes;
  for (char c : text) bytes.push_back(3 + static_cast<unsigned char>(c));
  // Ids 3..258 are the single bytes in the vocabulary's own order: find each by its bytes.
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  for (size_t i = 0; i < text.size(); ++i) {
    for (int32_t id = 3; id < 259; ++id) {
      if (tokenizer.TokenBytes(id) == std::string_view(text).substr(i, 1)) bytes[i] = id;
    }
  }
  for (size_t group = 1; group <= 8; ++group) {
    OutputPipeline pipeline(tokenizer, Plain());
    std::string content;
    for (size_t i = 0; i < bytes.size(); i += group) {
      std::vector<OutputEvent> events;
      pipeline.Push(std::span(bytes).subspan(i, std::min(group, bytes.size() - i)), &events);
      for (const OutputEvent& event : events) {
        EXPECT_TRUE(IsValidUtf8(event.text));
        content += event.text;
      }
    }
    EXPECT_EQ(content, text);
  }
}

TEST(OutputParserBugCases, A10_FinalEmojiIsWhole) {
  const std::vector<int32_t> ids = testing::Encode(testing::ReleasedTokenizer(), "done 🦜");
  for (size_t group = 1; group <= ids.size(); ++group) {
    EXPECT_EQ(testing::ParseIds(Plain(), ids, group).content, "done 🦜");
  }
}

TEST(OutputParserBugCases, A11_KoreanSyllableIsWholeOneStepLater) {
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  const std::vector<int32_t> ids = testing::Encode(tokenizer, "뷁뷁");
  ASSERT_GT(ids.size(), 2u) << "the test needs syllables that span tokens";
  OutputPipeline pipeline(tokenizer, Plain());
  std::vector<OutputEvent> events;
  for (int32_t id : ids) {
    pipeline.Push(std::span(&id, 1), &events);
    const std::string shown = events.empty() ? "" : events.back().text;
    EXPECT_EQ(shown.size() % 3, 0u);
    EXPECT_TRUE(IsValidUtf8(shown));
  }
  EXPECT_EQ(events.back().text, "뷁뷁");
}

TEST(OutputParserBugCases, A12_IncrementsAreNotCutTwice) {
  EXPECT_EQ(testing::ParsePieces(Plain(), {"Hello", " World", " Foo"}).content, "Hello World Foo");
}

TEST(OutputParserBugCases, B02_ResultDoesNotDependOnChunks) {
  const std::string text =
      "think\n</think>\n\nsay\n\n" + Block(Invoke("f", Parameter("a", true, "x<y</z")) + "\n" +
                                           Invoke("g", Parameter("b", false, "{\"c\": [1]}")));
  const ParserSettings settings = WithTools(Thinking());
  const ParsedOutput whole = ParseEverySplit(settings, text);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
      const size_t size = 1 + random() % 9;
      pieces.push_back(text.substr(i, size));
      i += size;
    }
    ASSERT_EQ(testing::ParsePieces(settings, pieces), whole) << "round " << round;
  }
}

TEST(OutputParserBugCases, B03_StreamEndsRightBehindACall) {
  const std::string call = Invoke("f", Parameter("a", true, "x"));
  for (const std::string& text :
       {Block(call), "<｜DSML｜ calls>\n" + call, "<｜DSML｜ calls>\n" + call + "\n<",
        "<｜DSML｜ calls>\n" + call + "\n</｜DSML｜"}) {
    const ParsedOutput parsed = ParseEverySplit(WithTools(), text);
    ASSERT_EQ(parsed.calls.size(), 1u) << text;
    EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"x\"}");
    EXPECT_TRUE(parsed.calls[0].closed);
  }
}

TEST(OutputParserBugCases, B08_NoPartOfTheOpenerInContent) {
  const std::string block = Block(Invoke("f", Parameter("a", true, "x")));
  const std::string text = "say\n\n" + block;
  for (size_t i = 1; i < text.size(); ++i) {
    for (const std::string& shown :
         ShownAfterEach(WithTools(), {text.substr(0, i), text.substr(i)})) {
      EXPECT_EQ(std::string_view("say").substr(0, shown.size()), shown) << "cut at " << i;
    }
  }
  // State belongs to one parser: the next one starts clean.
  EXPECT_EQ(ParseEverySplit(WithTools(), text).calls.size(), 1u);
  EXPECT_EQ(ParseEverySplit(WithTools(), "plain").order, "C");
}

TEST(OutputParserBugCases, B09_PartialCloserIsWithheld) {
  const ParsedOutput shell = ParseEverySplit(
      WithTools(), Block(Invoke("shell", Parameter("cmd", true, "make 2>&1 </dev/null <"))));
  EXPECT_EQ(shell.calls[0].arguments, "{\"cmd\": \"make 2>&1 </dev/null <\"}");
  // The closing tag comes without its last byte.
  const ParsedOutput cut = ParseEverySplit(
      WithTools(),
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"location\" "
      "string=\"true\">Paris</｜DSML｜ parameter");
  EXPECT_EQ(cut.calls[0].arguments, "{\"location\": \"Paris\"");
}

TEST(OutputParserBugCases, B10_QuotedMarkupStaysText) {
  const std::string prose = "Write " + Block(Invoke("f", Parameter("a", true, "x"))) + " to call.";
  const std::vector<int32_t> ids = testing::Encode(testing::ReleasedTokenizer(), prose);
  for (size_t group = 1; group <= 8; ++group) {
    const ParsedOutput parsed = testing::ParseIds(WithTools(), ids, group);
    EXPECT_EQ(parsed.content, prose);
    EXPECT_TRUE(parsed.calls.empty());
    EXPECT_FALSE(parsed.malformed.any());
  }
  const std::vector<int32_t> real =
      testing::EncodeWithSpecials(testing::ReleasedTokenizer(), prose);
  EXPECT_EQ(testing::ParseIds(WithTools(), real, 3).calls.size(), 1u);
}

TEST(OutputParserBugCases, B11_MalformedClosersNeverReachTheClient) {
  for (const std::string closer :
       {"</｜DSML｜ tool>", "</｜DSML｜>", "</｜DSML｜ invok>", "<｜DSML｜ /invoke>"}) {
    const ParsedOutput parsed = ParseEverySplit(
        WithTools(), "c\n\n" + Block(Invoke("f", Parameter("a", true, "x") + closer)));
    EXPECT_EQ(parsed.content, "c") << closer;
    ASSERT_EQ(parsed.calls.size(), 1u) << closer;
    EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"x\"}") << closer;
    EXPECT_TRUE(parsed.malformed.any()) << closer;
  }
}

TEST(OutputParserBugCases, B12_FragmentsConcatenateToJson) {
  for (const std::string value :
       {"{\"a\": \"", "\\", "\"", "\\\"", "}", "{}", ", \"b\": ", "\n\r\t\b\f", "</", "<"}) {
    const ParsedOutput parsed = ParseEverySplit(
        WithTools(),
        Block(Invoke("f", Parameter("a", true, value) + "\n" + Parameter("b", true, value))));
    ASSERT_TRUE(IsJsonObject(parsed.calls[0].arguments)) << parsed.calls[0].arguments;
    const json::value arguments = json::parse(parsed.calls[0].arguments);
    EXPECT_EQ(arguments.at("a").as_string(), value);
    EXPECT_EQ(arguments.at("b").as_string(), value);
  }
}

TEST(OutputParserBugCases, B15_OutputThatIsNotJsonIsData) {
  const ParsedOutput parsed =
      ParseEverySplit(WithTools(), Block(Invoke("f", Parameter("a", false, "{bad"))));
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": {bad}");
  EXPECT_TRUE(parsed.calls[0].closed);
}

TEST(OutputParserBugCases, B18_BothTagSpellings) {
  std::string v4 = Block(
      Invoke("f", Parameter("a", true, "x y") + "\n" + Parameter("b", false, "{\"k\": [1, 2]}")));
  const auto replace_all = [&](std::string_view from, std::string_view to) {
    for (size_t at = v4.find(from); at != std::string::npos; at = v4.find(from, at)) {
      v4.replace(at, from.size(), to);
      at += to.size();
    }
  };
  const std::string v41 = v4;
  replace_all("｜DSML｜ calls", "｜DSML｜tool_calls");
  replace_all("｜DSML｜ ", "｜DSML｜");
  ASSERT_NE(v4, v41);
  const ParsedOutput parsed = ParseEverySplit(WithTools(), v41);
  EXPECT_EQ(ParseEverySplit(WithTools(), v4), parsed);
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"x y\", \"b\": {\"k\": [1, 2]}}");
}

TEST(OutputParserBugCases, B19_NameThenFragmentsBeforeTheEnd) {
  OutputParser parser(WithTools());
  std::vector<OutputEvent> events;
  parser.PushText("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\"", &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, OutputEventKind::kCallStart);
  parser.PushText(">\n<｜DSML｜ parameter name=\"o\" string=\"false\">{\"k\": [1, ", &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, OutputEventKind::kArguments);
  EXPECT_EQ(events[1].text, "{\"o\": {\"k\": [1, ");
}

TEST(OutputParserBugCases, B20_ReasoningWithoutAnEnd) {
  const ParsedOutput parsed = ParseEverySplit(Thinking(), "no closing tag\n");
  EXPECT_EQ(parsed.reasoning, "no closing tag\n");
  EXPECT_EQ(parsed.content, "");
  EXPECT_EQ(parsed.malformed[MalformedKind::kNoThinkEnd], 1);
}

TEST(OutputParserBugCases, B21_BlocksThatAreCutOrMisplaced) {
  const std::string call = Invoke("f", Parameter("a", true, "x"));
  const ParsedOutput inside =
      ParseEverySplit(WithTools(Thinking()), "r\n\n" + Block(call) + "</think>later");
  EXPECT_EQ(inside.reasoning, "r");
  EXPECT_EQ(inside.content, "");
  EXPECT_EQ(inside.calls.size(), 1u);
  const ParsedOutput unclosed = ParseEverySplit(WithTools(), "c\n\n<｜DSML｜ calls>\n" + call);
  EXPECT_EQ(unclosed.content, "c");
  EXPECT_TRUE(unclosed.calls[0].closed);
  const ParsedOutput cut = ParseEverySplit(
      WithTools(), "c\n\n<｜DSML｜ calls>\n" + call +
                       "\n<｜DSML｜ invoke name=\"g\">\n<｜DSML｜ parameter name=\"b\" "
                       "string=\"false\">[1, 2");
  ASSERT_EQ(cut.calls.size(), 2u);
  EXPECT_EQ(cut.calls[0].arguments, "{\"a\": \"x\"}");
  EXPECT_EQ(cut.calls[1].arguments, "{\"b\": [1, 2");
  EXPECT_FALSE(cut.calls[1].closed);
  EXPECT_EQ(ParseEverySplit(Plain(), "c\n\n" + Block(call)).content, "c\n\n" + Block(call));
}

TEST(OutputParserBugCases, B22_SeparatorsTypesAndStrayThinkTags) {
  const ParsedOutput typed = ParseEverySplit(
      WithTools(Thinking()),
      "r</think>x\n\n" +
          Block(Invoke("f", Parameter("n", false, "-1.5e3") + "\n" + Parameter("t", false, "true") +
                                "\n" + Parameter("o", false, "{\"a\": [null]}"))));
  EXPECT_EQ(typed.content, "x");
  EXPECT_EQ(typed.calls[0].arguments, "{\"n\": -1.5e3, \"t\": true, \"o\": {\"a\": [null]}}");
  const ParsedOutput stray = ParseEverySplit(Thinking(), "<think>r</think>a</think>b<think>c");
  EXPECT_EQ(stray.reasoning, "<think>r");
  EXPECT_EQ(stray.content, "ab<think>c");
  EXPECT_EQ(ParseEverySplit(WithTools(), Block(Invoke("f", "{\"a\": 1}"))).calls[0].arguments,
            "{}");
}

TEST(OutputParserBugCases, B23_OutputStartsInsideReasoning) {
  const std::vector<int32_t> ids =
      testing::EncodeWithSpecials(testing::ReleasedTokenizer(), "why</think>because");
  for (size_t group = 1; group <= 4; ++group) {
    const ParsedOutput parsed = testing::ParseIds(WithTools(Thinking()), ids, group);
    EXPECT_EQ(parsed.reasoning, "why");
    EXPECT_EQ(parsed.content, "because");
  }
}

struct Fixture {
  std::string_view name;
  std::string text;
  std::vector<testing::ParsedCall> calls;
};

std::vector<Fixture> Fixtures() {
  const std::string open = "<｜DSML｜ calls>\n";
  return {
      {"zero arguments", Block(Invoke("f", "")), {{"f", "{}", true}}},
      {"types",
       Block(Invoke("f", Parameter("a", false, "[1, 2]") + "\n" + Parameter("b", false, "true") +
                             "\n" + Parameter("c", false, "4"))),
       {{"f", "{\"a\": [1, 2], \"b\": true, \"c\": 4}", true}}},
      {"parallel",
       Block(Invoke("f", "") + "\n" + Invoke("g", Parameter("b", false, "2"))),
       {{"f", "{}", true}, {"g", "{\"b\": 2}", true}}},
      {"markup inside a string",
       Block(Invoke("f", Parameter("a", true, "see <｜DSML｜ invoke name=\"g\"> ok"))),
       {{"f", "{\"a\": \"see <｜DSML｜ invoke name=\\\"g\\\"> ok\"}", true}}},
      {"newline, quote, backslash",
       Block(Invoke("f", Parameter("a", true, "\n\"\\"))),
       {{"f", "{\"a\": \"\\n\\\"\\\\\"}", true}}},
      {"wrong block name",
       "<｜DSML｜ function_calls>\n" + Invoke("f", "") + "\n</｜DSML｜ calls>",
       {{"f", "{}", true}}},
      {"unclosed outer block", open + Invoke("f", ""), {{"f", "{}", true}}},
      {"unclosed invoke",
       open + "<｜DSML｜ invoke name=\"f\">\n" + Parameter("a", true, "x") + "\n</｜DSML｜ calls>",
       {{"f", "{\"a\": \"x\"}", true}}},
      {"cut inside a parameter",
       open + "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">par",
       {{"f", "{\"a\": \"par", false}}},
      {"empty tool name", Block(Invoke("", "")), {{"", "{}", true}}},
  };
}

TEST(OutputParserBugCases, B24_PublicFixtures) {
  for (const Fixture& fixture : Fixtures()) {
    const ParsedOutput parsed = ParseEverySplit(WithTools(), "c\n\n" + fixture.text);
    EXPECT_EQ(parsed.content, "c") << fixture.name;
    EXPECT_EQ(parsed.calls, fixture.calls) << fixture.name << "\n" << parsed;
    const std::vector<int32_t> ids =
        testing::EncodeWithSpecials(testing::ReleasedTokenizer(), "c\n\n" + fixture.text);
    for (size_t group : {size_t{1}, size_t{2}, size_t{5}, size_t{13}}) {
      EXPECT_EQ(testing::ParseIds(WithTools(), ids, group), parsed) << fixture.name;
    }
  }
}

}  // namespace
}  // namespace deepinfer
