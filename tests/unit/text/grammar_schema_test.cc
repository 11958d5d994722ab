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

// All of it is enforced: these outputs are legal, those are not.
void ExpectSchema(const std::string& schema, const std::vector<std::string>& legal,
                  const std::vector<std::string>& illegal) {
  const GrammarSource source = Schema(schema);
  for (const std::string& part : UnenforcedOf(source)) ADD_FAILURE() << schema << ": " << part;
  for (const std::string& text : legal) {
    EXPECT_TRUE(DemoMatches(source, text)) << schema << " " << text;
  }
  for (const std::string& text : illegal) {
    EXPECT_FALSE(DemoMatches(source, text)) << schema << " " << text;
  }
}

TEST(GrammarSchema, LimitsOfIntegersMayBeFractions) {
  ExpectSchema(R"({"type":"integer","exclusiveMinimum":0.5,"maximum":3.5})", {"1", "3"},
               {"0", "4"});
  ExpectSchema(R"({"type":"integer","minimum":-1.5,"exclusiveMaximum":2.0})", {"-1", "1"},
               {"-2", "2"});
  ExpectSchema(R"({"type":"integer","minimum":0.5,"exclusiveMinimum":3,"maximum":1e30})", {"4"},
               {"3"});
  ExpectSchema(R"({"type":["integer","number"],"minimum":0.5})", {"0.5", "2"}, {"0.25", "0"});
  ExpectSchema(R"({"type":"number","exclusiveMinimum":0.5})", {"0.75", "1"}, {"0.5", "0"});
  // No integer of 64 bits is that large, no number that the grammar writes that small.
  EXPECT_EQ(UnenforcedOf(Schema(R"({"type":"integer","minimum":1e30})")),
            std::vector<std::string>{"minimum at ''"});
  EXPECT_EQ(UnenforcedOf(Schema(R"({"type":"number","minimum":1e-9,"maximum":2e-9})")).size(), 2U);
}

TEST(GrammarSchema, CountsMayBeWrittenAsFractions) {
  ExpectSchema(R"({"type":"array","minItems":2.0,"maxItems":3.0})", {"[1, 2]", "[1, 2, 3]"},
               {"[1]", "[1, 2, 3, 4]"});
  ExpectSchema(R"({"type":"string","minLength":1.0,"maxLength":2e0})", {R"("ab")"},
               {R"("")", R"("abc")"});
  ExpectSchema(R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},
                   "minProperties":1.0,"maxProperties":1.0})",
               {R"({"b": null})"}, {"{}", R"({"a": null, "b": null})"});
  ExpectSchema(R"({"type":"array","minContains":2.0,"maxContains":0,"maxItems":1})", {"[1]"}, {});
}

TEST(GrammarSchema, TuplesEndWhereTheirArraysDo) {
  const std::string tuple = R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}])";
  ExpectSchema(tuple + R"(,"maxItems":1})", {"[1]"}, {"[1, null]", "[null]"});
  ExpectSchema(tuple + R"(,"maxItems":0})", {"[]"}, {"[1]"});
  ExpectSchema(tuple + R"(,"minItems":3})", {R"([1, null, "x"])"}, {"[1, null]"});
  ExpectSchema(tuple + R"(,"items":{"type":"boolean"},"minItems":3,"maxItems":3})",
               {"[1, null, true]"}, {"[1, null]", "[1, null, 1]", "[1, null, true, true]"});
  ExpectSchema(R"({"type":"array","prefixItems":[true,false,true]})", {"[1]", R"(["x"])"},
               {"[1, 2]"});
  // As older drafts write them.
  ExpectSchema(R"({"type":"array","items":[{"type":"integer"}],"additionalItems":false})", {"[1]"},
               {"[1, 1]", "[null]"});
}

TEST(GrammarSchema, WhatNothingFulfilsIsLeftOut) {
  ExpectSchema(R"({"type":"object","properties":{"a":false,"b":true},"required":["b"]})",
               {R"({"b": 1})"}, {R"({"a": 1, "b": 1})", "{}"});
  ExpectSchema(R"({"type":"object","properties":{"a":{"not":{}},"b":{"type":"null"},
                   "c":{"$ref":"#/$defs/never"}},"$defs":{"never":false}})",
               {"{}", R"({"b": null})"}, {R"({"a": 1})", R"({"c": 1})"});
  ExpectSchema(R"({"anyOf":[false,{"type":"integer","minimum":3,"maximum":2},{"type":"null"}]})",
               {"null"}, {"2", "3"});
  ExpectSchema(R"({"type":["array","null"],"minItems":2,"maxItems":1})", {"null"}, {"[1]"});
  ExpectSchema(R"({"type":"object","patternProperties":{"^x":false},"properties":{"a":{}}})",
               {R"({"a": 1})"}, {R"({"x": 1})"});
  ExpectSchema(R"({"type":"object","propertyNames":false})", {"{}"}, {R"({"a": 1})"});
  ExpectSchema(R"({"allOf":[true,{"type":"null"}]})", {"null"}, {"1"});
  // Others may be there, and nothing keeps this name from them.
  EXPECT_EQ(UnenforcedOf(Schema(
                R"({"type":"object","properties":{"a":false},"additionalProperties":true})")),
            std::vector<std::string>{"properties at ''"});
  const auto never =
      CompileWith(&DemoPool(), Schema(R"({"type":"object","properties":{"b":{"type":"object",
                                       "properties":{"a":false},"required":["a"]}},
                                       "required":["b"]})"));
  EXPECT_EQ(never.status().code(), StatusCode::kInvalidRequest);
  EXPECT_NE(never.status().message().find("/properties/b/properties/a"), std::string::npos)
      << never.status().ToString();
}

// Each definition names the one before it in many ways, so that following every way takes for ever.
TEST(GrammarSchema, WhatDefinitionsSayOfEachOtherIsFoundOut) {
  std::string definitions = R"("d0":false)";
  for (int i = 1; i <= 12; ++i) {
    definitions += ",\"d" + std::to_string(i) + R"(":{"anyOf":[)";
    for (int way = 0; way < 20; ++way) {
      definitions +=
          std::string(way > 0 ? "," : "") + R"({"$ref":"#/$defs/d)" + std::to_string(i - 1) + "\"}";
    }
    definitions += "]}";
  }
  ExpectSchema(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/d12"},"b":{}},"$defs":{)" +
                   definitions + "}}",
               {R"({"b": 1})"}, {R"({"a": 1})"});
  // It leads back to itself, which says nothing.
  ExpectSchema(R"({"$ref":"#/$defs/list","$defs":{"list":{"anyOf":[{"type":"null"},
                   {"type":"array","items":{"$ref":"#/$defs/list"}}]}}})",
               {"null", "[[null]]"}, {"1"});
}

TEST(GrammarSchema, ReferencesIntoUnionsKeepTheirPlace) {
  const GrammarSource source =
      Schema(R"({"type":"object","properties":{"a":{"anyOf":[true,{"type":"null"}]},
                 "b":{"$ref":"#/properties/a/anyOf/1"},"c":{"allOf":[true,{"type":"null"}]}},
                 "required":["b"]})");
  EXPECT_TRUE(DemoMatches(source, R"({"b": null})"));
  EXPECT_FALSE(DemoMatches(source, R"({"b": 1})"));
}

TEST(GrammarPattern, WhatTheCompilerDoesNotKnowIsReported) {
  for (const char* pattern :
       {R"((?<=a)b)", R"((?<!a)b)", R"((a)\\1)", R"(\\bword\\b)", R"(\\p{L}+)", R"((?i)a)",
        R"((?>a))", R"(a++)", R"(a{,3})", R"(a{)", R"(a{2}+)"}) {
    const GrammarSource source =
        Schema(std::string(R"({"type":"string","pattern":")") + pattern + "\"}");
    EXPECT_EQ(UnenforcedOf(source), std::vector<std::string>{"pattern at ''"}) << pattern;
    EXPECT_TRUE(DemoMatches(source, R"("xy")")) << pattern;
  }
  ExpectPattern(R"(^(?:a|(?<n>b)){1,2}c{2}d*?[p+{]$)", {R"("abcc{")"}, {R"("abc{")"});
}

TEST(GrammarSchema, AssertionsThatHoldInPartAreReported) {
  for (
      const auto& [text, want] : std::vector<std::pair<const char*, const char*>>{
          {R"({"pattern":"^a$"})", "pattern"},
          {R"({"maxLength":3})", "maxLength"},
          {R"({"format":"date"})", "format"},
          {R"({"multipleOf":3})", "multipleOf"},
          {R"({"minimum":3})", "minimum"},
          {R"({"minItems":3})", "minItems"},
          {R"({"type":"object","patternProperties":{"^a":{}},"required":["a"]})", "required"},
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
