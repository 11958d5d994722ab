// What a schema asks for is in its grammar, or is reported as left out.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "unit/text/grammar_test_util.h"

namespace deepinfer::testing {
namespace {

GrammarSource Schema(std::string text) {
  return {.kind = GrammarKind::kJsonSchema, .text = std::move(text)};
}

std::vector<std::string> UnenforcedOf(const GrammarSource& source) {
  auto grammar = CompileWith(&DemoPool(), source);
  EXPECT_TRUE(grammar.ok()) << source.text << ": " << grammar.status().ToString();
  return grammar.ok() ? (*grammar)->unenforced() : std::vector<std::string>{"refused"};
}

// Of a JSON string whose schema has this pattern, spelt as in JSON.
void ExpectPattern(const std::string& pattern, const std::vector<std::string>& legal,
                   const std::vector<std::string>& illegal) {
  const GrammarSource source = Schema(R"({"type":"string","pattern":")" + pattern + "\"}");
  EXPECT_TRUE(UnenforcedOf(source).empty()) << pattern << ": " << UnenforcedOf(source).front();
  for (const std::string& text : legal) {
    EXPECT_TRUE(DemoMatches(source, text)) << pattern << " " << text;
  }
  for (const std::string& text : illegal) {
    EXPECT_FALSE(DemoMatches(source, text)) << pattern << " " << text;
  }
}

TEST(GrammarPattern, CharactersThatJsonEscapesAreEscaped) {
  ExpectPattern(R"(^a\\nb$)", {R"("a\nb")"}, {"\"a\nb\""});
  ExpectPattern(R"(^a\nb$)", {R"("a\nb")"}, {"\"a\nb\""});
  ExpectPattern(R"(^\"x\"$)", {R"("\"x\"")"}, {R"(""x"")"});
  ExpectPattern(R"(^\\\"x$)", {R"("\"x")"}, {R"(""x")"});
  ExpectPattern(R"(^C:\\\\[a-z]{1,4}$)", {R"("C:\\dear")"}, {R"("C:\dear")", R"("C:\\dear1")"});
  ExpectPattern(R"(^\\t$)", {R"("\t")"}, {"\"\t\""});
  ExpectPattern(R"(^\\0$)", {R"("\u0000")"}, {std::string("\"\0\"", 3)});
  ExpectPattern(R"(^\\cA\\x1f\\u{2}$)", {R"("\u0001\u001f\u0002")"}, {"\"\x01\x1f\x02\""});
  ExpectPattern(R"(^(a|\\\\)+$)", {R"("a\\a")", R"("a")"}, {R"("a\a")"});
}

TEST(GrammarPattern, MembersOfClassesAreEscaped) {
  ExpectPattern(R"(^[a\"\\n]{2}$)", {R"("\"\n")", R"("aa")"}, {R"("a"")", R"("a\\")"});
  ExpectPattern(R"(^[\\\\]$)", {R"("\\")"}, {R"("\")"});
  ExpectPattern(R"(^[ -~]$)", {R"("!")", R"("]")", R"("^")"}, {R"(""")", R"("\")"});
  ExpectPattern(R"(^[\\^\"]$)", {R"("^")", R"("\"")"}, {R"("a")"});
  ExpectPattern(R"(^[\\s\\S]{2}$)", {R"("a ")", R"("é:")"}, {R"("a"")", "\"a\n\"", R"("a\")"});
  ExpectPattern(R"(^[^\\W_]$)", {R"("a")"}, {R"("_")", R"("-")"});
}

TEST(GrammarPattern, NegatedClassesHoldNothingThatJsonEscapes) {
  for (const char* pattern : {R"(^[^a]ä$)", R"(^.ä$)", R"(^\\Sä$)", R"(^\\Dä$)", R"(^\\Wä$)",
                              R"(^[^a-]ä$)", R"(^[^-a]ä$)", R"(^[^\\d]ä$)"}) {
    ExpectPattern(pattern, {R"("!ä")"}, {"\"\"ä\"", "\"\\ä\"", "\"\nä\"", "\"\x01ä\"", "\"aaä\""});
  }
}

TEST(GrammarPattern, KeysAreEscapedToo) {
  const GrammarSource source =
      Schema(R"({"type":"object","patternProperties":{"^\"k$":{"type":"integer"}},
                 "minProperties":1,"additionalProperties":false})");
  EXPECT_TRUE(DemoMatches(source, R"({"\"k":1})"));
  EXPECT_FALSE(DemoMatches(source, R"({""k":1})"));
}

TEST(GrammarPattern, WhatCannotBeWrittenIsReported) {
  const GrammarSource source =
      Schema(R"({"type":"object","properties":{"a":{"type":"string","pattern":"^[^]$"}}})");
  EXPECT_EQ(UnenforcedOf(source), std::vector<std::string>{"pattern at '/properties/a'"});
  EXPECT_TRUE(DemoMatches(source, R"({"a":"xy"})"));
}

TEST(GrammarSchema, RequiredNamesThatAreNoPropertiesAreAskedFor) {
  const GrammarSource open =
      Schema(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a","x"]})");
  EXPECT_TRUE(DemoMatches(open, R"({"a": 203, "x": [1, "y"]})"));
  EXPECT_FALSE(DemoMatches(open, R"({"a": 203})"));
  const GrammarSource typed = Schema(
      R"({"type":"array","items":{"anyOf":[{"type":"object","required":["x"],
          "additionalProperties":{"type":"integer"}}]},"minItems":1})");
  EXPECT_TRUE(DemoMatches(typed, R"([{"x": 1}])"));
  EXPECT_FALSE(DemoMatches(typed, R"([{"x": "1"}])"));
  EXPECT_FALSE(DemoMatches(typed, R"([{}])"));
  for (const GrammarSource& source : {open, typed}) EXPECT_TRUE(UnenforcedOf(source).empty());
  // Nothing fulfils it.
  const auto never = CompileWith(
      &DemoPool(), Schema(R"({"type":"object","required":["x"],"additionalProperties":false})"));
  EXPECT_EQ(never.status().code(), StatusCode::kInvalidRequest) << never.status().ToString();
}

TEST(GrammarSchema, GivenValuesOfOtherTypesGo) {
  const GrammarSource source = Schema(R"({"enum":["a",1,2.0,null,[1]],"type":["string","null"]})");
  EXPECT_TRUE(UnenforcedOf(source).empty());
  for (const char* text : {R"("a")", "null"}) EXPECT_TRUE(DemoMatches(source, text)) << text;
  for (const char* text : {"1", "2.0", "[1]"}) EXPECT_FALSE(DemoMatches(source, text)) << text;
  for (const char* text : {R"({"const":1,"type":"string"})", R"({"enum":[1],"type":"string"})"}) {
    const auto never = CompileWith(&DemoPool(), Schema(text));
    EXPECT_EQ(never.status().code(), StatusCode::kInvalidRequest) << text;
  }
}

TEST(GrammarSchema, IntegersWithOneLimitHaveFewDigitsToo) {
  const std::string long_number(40, '7');
  const GrammarSource least = Schema(R"({"type":"integer","minimum":527})");
  EXPECT_TRUE(DemoMatches(least, "9223372036854775807"));
  EXPECT_FALSE(DemoMatches(least, long_number));
  const GrammarSource most = Schema(R"({"type":["integer","null"],"exclusiveMaximum":-4})");
  EXPECT_TRUE(DemoMatches(most, "-9223372036854775807"));
  EXPECT_FALSE(DemoMatches(most, "-" + long_number));
}

TEST(GrammarSchema, AssertionsThatHoldInPartAreReported) {
  for (
      const auto& [text, want] : std::vector<std::pair<const char*, const char*>>{
          {R"({"pattern":"^a$"})", "pattern"},
          {R"({"maxLength":3})", "maxLength"},
          {R"({"format":"date"})", "format"},
          {R"({"multipleOf":3})", "multipleOf"},
          {R"({"type":"object","minProperties":2,"additionalProperties":true})", "minProperties"},
          {R"({"type":"object","properties":{"ab":{}},"propertyNames":{"pattern":"^b"}})",
           "propertyNames"},
          {R"({"type":"object","properties":{"ab":{}},"patternProperties":{"^a":{"type":"null"}}})",
           "patternProperties"},
          {R"({"const":12345678901234567890123})", "const"},
          {R"({"enum":[18446744073709551615]})", "enum"},
          {R"({"type":"object","properties":{"a":{"$dynamicRef":"#x"}}})", "$dynamicRef"}}) {
    const std::vector<std::string> found = UnenforcedOf(Schema(text));
    ASSERT_FALSE(found.empty()) << text;
    EXPECT_TRUE(found.front().starts_with(want)) << text << ": " << found.front();
  }
}

}  // namespace
}  // namespace deepinfer::testing
