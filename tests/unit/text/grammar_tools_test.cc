// Tool calls under their grammar: what the model writes is what the parser reads
// (structured_outputs.md §2).
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <regex>

#include "text/grammar.h"
#include "unit/text/grammar_test_util.h"
#include "unit/text/parser_test_util.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::DemoMatcher;
using testing::DemoMatches;
using testing::DemoTokenizer;
using testing::EosOf;
using testing::MaskOf;
using testing::ParsedOutput;

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "weather", "strict": null, "description": null,
   "parameters": {"type": "object", "required": ["city", "days"], "additionalProperties": false,
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
      "unit": {"enum": ["C", "F"]}, "tags": {"type": "array", "items": {"type": "string"}},
      "options": {"$ref": "#/$defs/options"}},
    "$defs": {"options": {"type": "object", "properties": {"a": {"type": "string"}},
                          "required": ["a"], "additionalProperties": false}}}}},
  {"function": {"name": "ns::ping", "parameters": {"type": "object", "properties": {},
                                                   "additionalProperties": false}}}])";

GrammarSource Tools(CallsStart start = CallsStart::kBehindMarker, bool parallel = true) {
  return {.kind = GrammarKind::kToolCalls,
          .text = kTools,
          .calls_start = start,
          .parallel_calls = parallel};
}

int32_t Marker() { return SpecialTokens::Resolve(DemoTokenizer())->dsml; }

ParsedOutput Parse(const std::vector<int32_t>& ids, bool in_calls) {
  ParserSettings settings;
  settings.parse_tool_calls = true;
  settings.starts_in_tool_calls = in_calls;
  settings.dsml_id = Marker();
  settings.think_end_id = SpecialTokens::Resolve(DemoTokenizer())->think_end;
  OutputPipeline pipeline(DemoTokenizer(), settings);
  std::vector<OutputEvent> events;
  pipeline.Push(ids, &events);
  pipeline.Finish(&events);
  ParsedOutput parsed;
  testing::AddEvents(events, &parsed);
  parsed.malformed = pipeline.malformed();
  return parsed;
}

constexpr const char* kOneCall =
    "<｜DSML｜ invoke name=\"weather\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">São \"Paulo\" </x></｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"options\" string=\"false\">{\"a\": \"b\"}</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>";
constexpr const char* kEmptyCall = "<｜DSML｜ invoke name=\"ns::ping\">\n\n</｜DSML｜ invoke>";
constexpr const char* kClose = "\n</｜DSML｜ calls>";

TEST(GrammarTools, TakesTheFormOfThePrompt) {
  const std::string one = std::string(kOneCall) + kClose;
  const std::string two = std::string(kEmptyCall) + "\n" + kOneCall + kClose;
  EXPECT_TRUE(DemoMatches(Tools(CallsStart::kInsideBlock), one));
  EXPECT_TRUE(DemoMatches(Tools(CallsStart::kInsideBlock), two));
  EXPECT_TRUE(DemoMatches(Tools(CallsStart::kBehindMarker), " calls>\n" + two));
  EXPECT_TRUE(DemoMatches(Tools(CallsStart::kWholeBlock), "\n\n<｜DSML｜ calls>\n" + two));
  EXPECT_FALSE(DemoMatches(Tools(CallsStart::kInsideBlock), kOneCall));
  EXPECT_FALSE(DemoMatches(Tools(CallsStart::kInsideBlock), one + " text behind it"));
}

TEST(GrammarTools, WithoutParallelCallsThereIsExactlyOne) {
  const std::string two = std::string(kEmptyCall) + "\n" + kEmptyCall + kClose;
  const std::string one = std::string(kEmptyCall) + kClose;
  EXPECT_TRUE(DemoMatches(Tools(CallsStart::kInsideBlock, false), one));
  EXPECT_FALSE(DemoMatches(Tools(CallsStart::kInsideBlock, false), two));
  EXPECT_FALSE(DemoMatches(Tools(CallsStart::kInsideBlock, false), "\n</｜DSML｜ calls>"));
}

TEST(GrammarTools, ListedToolsAndTheirSchemasOnly) {
  const auto matches = [](std::string text) {
    return DemoMatches(Tools(CallsStart::kInsideBlock), text + kClose);
  };
  const auto with = [](std::string from, std::string to) {
    std::string text = kOneCall;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_TRUE(matches(kOneCall));
  EXPECT_FALSE(matches(with("weather", "other")));
  EXPECT_FALSE(matches(with(">3<", ">three<")));
  EXPECT_FALSE(matches(with("string=\"false\">3", "string=\"true\">3")));
  EXPECT_FALSE(matches(with("\"city\"", "\"town\"")));
  EXPECT_FALSE(matches(with("{\"a\": \"b\"}", "{\"b\": 1}")));
}

// The characters ｜DSML｜ written with ordinary tokens are text for the parser, so they must be
// text for the grammar: legal inside a value, illegal in place of the marker.
TEST(GrammarTools, TheMarkerIsOneToken) {
  std::vector<int32_t> spelt;
  DemoTokenizer().EncodeText("<｜DSML｜ invoke", &spelt);
  GrammarMatcher matcher = DemoMatcher(Tools(CallsStart::kInsideBlock));
  EXPECT_FALSE(matcher.AcceptAll(spelt).ok());

  const std::string text = std::string(kOneCall) + kClose;
  const size_t value = text.find("São");
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeWithSpecials(text.substr(0, value), &ids);
  DemoTokenizer().EncodeText("</｜DSML｜ parameter>", &ids);
  DemoTokenizer().EncodeWithSpecials(text.substr(value), &ids);
  GrammarMatcher quoting = DemoMatcher(Tools(CallsStart::kInsideBlock));
  ASSERT_TRUE(quoting.AcceptAll(ids).ok());
  const ParsedOutput parsed = Parse(ids, true);
  ASSERT_EQ(parsed.calls.size(), 1U);
  EXPECT_NE(parsed.calls[0].arguments.find("</｜DSML｜ parameter>São"), std::string::npos);
  EXPECT_FALSE(parsed.malformed.any()) << parsed;
}

TEST(GrammarTools, ValuesHoldNoMarkerToken) {
  const std::string text = kOneCall;
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeWithSpecials(text.substr(0, text.find("São") + 2), &ids);
  GrammarMatcher matcher = DemoMatcher(Tools(CallsStart::kInsideBlock));
  ASSERT_TRUE(matcher.AcceptAll(ids).ok());
  EXPECT_FALSE(matcher.Accept(Marker()).ok());
  std::vector<int32_t> close;
  DemoTokenizer().EncodeText("</", &close);
  ASSERT_TRUE(matcher.AcceptAll(close).ok());
  EXPECT_TRUE(matcher.Accept(Marker()).ok());
}

TEST(GrammarTools, MarkerTextInASchemaIsText) {
  const GrammarSource source{.kind = GrammarKind::kToolCalls,
                             .text = R"([{"function": {"name": "t", "parameters": {"type": "object",
                 "properties": {"p": {"enum": ["<｜DSML｜ calls>"]}}, "required": ["p"]}}}])",
                             .calls_start = CallsStart::kInsideBlock};
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeWithSpecials(
      "<｜DSML｜ invoke name=\"t\">\n<｜DSML｜ parameter name=\"p\" string=\"true\">", &ids);
  DemoTokenizer().EncodeText("<｜DSML｜ calls>", &ids);
  DemoTokenizer().EncodeWithSpecials("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
                                     &ids);
  GrammarMatcher matcher = DemoMatcher(source);
  EXPECT_TRUE(matcher.AcceptAll(ids).ok());
}

TEST(GrammarTools, LengthLimitsOfRawStringsAreReported) {
  auto grammar = testing::CompileWith(
      &testing::DemoPool(), {.kind = GrammarKind::kToolCalls,
                             .text = R"([{"function": {"name": "t", "parameters": {"type": "object",
                  "properties": {"p": {"type": "string", "maxLength": 5}}}}}])"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  ASSERT_EQ((*grammar)->unenforced().size(), 1U);
  EXPECT_EQ((*grammar)->unenforced()[0], "the length of tools[0].function.parameters.p");
}

// Whatever is written under the grammar: the parser finds calls of listed tools with arguments
// that follow the schema, and nothing malformed.
TEST(GrammarTools, RandomBlocksParseCleanly) {
  constexpr unsigned kSeed = 4711;
  std::mt19937 random(kSeed);
  int num_calls = 0;
  for (int round = 0; round < 40; ++round) {
    const bool inside = round % 2 == 0;
    GrammarMatcher matcher =
        DemoMatcher(Tools(inside ? CallsStart::kInsideBlock : CallsStart::kWholeBlock));
    const auto walk =
        testing::WalkGrammar(&matcher, DemoTokenizer(), EosOf(DemoTokenizer()), &random);
    ASSERT_TRUE(walk.ended) << walk.error << "\n" << walk.text;
    const ParsedOutput parsed = Parse(walk.tokens, inside);
    ASSERT_FALSE(parsed.malformed.any()) << parsed << "\nround " << round << " seed " << kSeed;
    ASSERT_FALSE(parsed.calls.empty()) << walk.text;
    EXPECT_EQ(parsed.content, "");
    for (const auto& call : parsed.calls) {
      ++num_calls;
      EXPECT_TRUE(call.closed);
      json::error_code error;
      const json::value arguments = json::parse(call.arguments, error);
      ASSERT_FALSE(error) << call.arguments;
      const json::object& object = arguments.as_object();
      if (call.name == "weather") {
        EXPECT_TRUE(object.at("city").is_string());
        EXPECT_TRUE(object.at("days").is_int64() || object.at("days").is_number());
        EXPECT_TRUE(!object.contains("tags") || object.at("tags").is_array());
      } else {
        EXPECT_EQ(call.name, "ns::ping");
        EXPECT_TRUE(object.empty()) << call.arguments;
      }
    }
  }
  EXPECT_GT(num_calls, 40);
}

// A property of the parameters is written as it is, what is nested in one as JSON: behind the
// parser either follows its pattern.
constexpr const char* kPatternTools = R"([{"function": {"name": "t", "strict": true,
  "parameters": {"type": "object", "additionalProperties": false,
    "required": ["raw", "nested", "list", "referred"],
    "properties": {
      "raw": {"type": "string", "pattern": "^\"[a-c]{1,3}\\\\\"$"},
      "nested": {"type": "object", "additionalProperties": false, "required": ["path", "deep"],
        "properties": {"path": {"type": "string", "pattern": "^C:\\\\[a-c]{1,3}$"},
          "deep": {"type": "object", "additionalProperties": false, "required": ["lines"],
            "properties": {"lines": {"type": "string", "pattern": "^(a\\n|\\t\"){1,3}$"}}}}},
      "list": {"type": "array", "minItems": 1, "maxItems": 3,
        "items": {"type": "string", "pattern": "^[\\\\\"x]{2,4}$"}},
      "referred": {"type": "array", "items": {"$ref": "#/$defs/id"}, "minItems": 1,
        "maxItems": 2}},
    "$defs": {"id": {"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"}}}}}])";

TEST(GrammarTools, NestedPatternsHoldForTheParsedStrings) {
  constexpr unsigned kSeed = 815;
  std::mt19937 random(kSeed);
  const auto expect = [](const json::value& value, const char* pattern) {
    const std::string text(value.as_string());
    EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << pattern << ": " << text;
  };
  for (const CallsStart start : {CallsStart::kInsideBlock, CallsStart::kWholeBlock}) {
    const GrammarSource source{.kind = GrammarKind::kToolCalls,
                               .text = kPatternTools,
                               .calls_start = start,
                               .parallel_calls = false};
    const auto grammar = testing::CompileWith(&testing::DemoPool(), source);
    ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
    EXPECT_TRUE((*grammar)->unenforced().empty()) << (*grammar)->unenforced().front();
    for (int round = 0; round < 30; ++round) {
      GrammarMatcher matcher(*grammar, DemoTokenizer(), {EosOf(DemoTokenizer())});
      const auto walk =
          testing::WalkGrammar(&matcher, DemoTokenizer(), EosOf(DemoTokenizer()), &random);
      ASSERT_TRUE(walk.ended) << walk.error << "\n" << walk.text;
      const ParsedOutput parsed = Parse(walk.tokens, start == CallsStart::kInsideBlock);
      ASSERT_FALSE(parsed.malformed.any()) << parsed << "\nround " << round << " seed " << kSeed;
      ASSERT_EQ(parsed.calls.size(), 1U) << walk.text;
      json::error_code error;
      const json::value arguments = json::parse(parsed.calls[0].arguments, error);
      ASSERT_FALSE(error) << parsed.calls[0].arguments;
      expect(arguments.at("raw"), R"("[a-c]{1,3}\\")");
      expect(arguments.at("nested").at("path"), R"(C:\\[a-c]{1,3})");
      expect(arguments.at("nested").at("deep").at("lines"), "(a\n|\t\"){1,3}");
      for (const json::value& item : arguments.at("list").as_array()) {
        expect(item, R"([\\"x]{2,4})");
      }
      for (const json::value& item : arguments.at("referred").as_array()) {
        expect(item, "[A-C]{2}-[0-9]{3}");
      }
    }
  }
}

TEST(GrammarTools, OlderPromptFormHasItsOwnTags) {
  GrammarSource source = Tools(CallsStart::kWholeBlock);
  source.prompt_form = PromptForm::kV4;
  EXPECT_TRUE(DemoMatches(source,
                          "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ns::ping\">\n"
                          "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
}

TEST(GrammarTools, AnAnswerMayStandInPlaceOfTheBlock) {
  GrammarSource source = Tools(CallsStart::kAnswerOrBlock);
  source.answer_schema =
      R"({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})";
  EXPECT_TRUE(DemoMatches(source, R"({"x": 3})"));
  EXPECT_TRUE(DemoMatches(source, "\n\n<｜DSML｜ calls>\n" + std::string(kOneCall) + kClose));
  EXPECT_FALSE(DemoMatches(source, "free text"));
  EXPECT_FALSE(DemoMatches(source, R"({"x": "y"})"));
}

// Tools with the choice auto: free text, then the block or the end.
TEST(GrammarTools, AutomaticChoiceIsFreeUntilTheOpener) {
  GrammarTrigger trigger;
  trigger.token_ids = {Marker()};
  trigger.preceding_text = "<";
  trigger.optional = true;
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeWithSpecials(
      "Let me see.\n\n<｜DSML｜ calls>\n" + std::string(kOneCall) + kClose, &ids);
  GrammarMatcher matcher = DemoMatcher(Tools(), trigger);
  ASSERT_TRUE(matcher.AcceptAll(ids).ok());
  EXPECT_EQ(testing::LegalTokens(MaskOf(&matcher, DemoTokenizer())),
            std::vector<int32_t>{EosOf(DemoTokenizer())});
  const ParsedOutput parsed = Parse(ids, false);
  EXPECT_EQ(parsed.content, "Let me see.");
  EXPECT_EQ(parsed.calls.size(), 1U);
  EXPECT_FALSE(parsed.malformed.any()) << parsed;
}

}  // namespace
}  // namespace deepinfer
