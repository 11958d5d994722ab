// JSON Schema: validity, strict mode, patterns. The recorded cases come from the reference
// implementation of the conversion rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <iterator>

#include "server/json_schema_check.h"
#include "server/regex_syntax.h"
#include "server/strict_schema.h"
#include "support/source_dir.h"
#include "text/json_text.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

json::value Load(const std::string& name) {
  std::ifstream file(SourceDir() + "/tests/data/text/" + name);
  JsonDocument document;
  JsonFailure failure;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(ParseJson(text, &document, &failure)) << name << failure.ToString();
  return document.root();
}

json::value Parse(std::string_view text) {
  JsonDocument document;
  JsonFailure failure;
  EXPECT_TRUE(ParseJson(text, &document, &failure)) << text;
  return document.root();
}

TEST(JsonSchemaCheck, RecordedSchemasHaveTheRecordedFaults) {
  size_t num_valid = 0;
  const json::value cases = Load("json_schema_cases.json");
  for (const json::value& test_case : cases.as_array()) {
    const auto fault = CheckJsonSchema(test_case.at("schema"));
    const json::value& expected = test_case.at("fault");
    num_valid += expected.is_null();
    EXPECT_EQ(fault ? json::value(*fault) : json::value(nullptr), expected)
        << PythonJson(test_case.at("schema"));
  }
  EXPECT_EQ(cases.as_array().size(), 700u);
  EXPECT_GT(num_valid, 50u);
}

TEST(JsonSchemaCheck, ReferencesMustLeadSomewhere) {
  for (std::string_view valid :
       {R"({"$ref":"#"})", R"({"properties":{"a":{"$ref":"#/$defs/a%20b"}},"$defs":{"a b":{}}})",
        R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{}}})", R"({"$ref":"#/allOf/0","allOf":[{}]})",
        R"({"$ref":"#x","$defs":{"y":{"$anchor":"x"}}})",
        R"({"$defs":{"unused":{"$ref":"#/nowhere"}}})", R"({"enum":[{"$ref":"#/nowhere"}]})",
        R"({"$ref":"https://json-schema.org/draft/2020-12/schema"})"}) {
    EXPECT_EQ(CheckJsonSchema(Parse(valid)), std::nullopt) << valid;
  }
  for (std::string_view invalid :
       {R"({"$ref":"#/nowhere"})", R"({"$ref":"#x"})", R"({"$ref":"other.json"})",
        R"({"$ref":"file:///etc/passwd"})", R"({"$ref":"#/allOf/1","allOf":[{}]})",
        R"({"$ref":"#/a b"})", R"({"$ref":"#/title","title":"x"})"}) {
    EXPECT_NE(CheckJsonSchema(Parse(invalid)), std::nullopt) << invalid;
  }
}

TEST(JsonSchemaCheck, LongChainsOfReferencesCostNoCallDepth) {
  std::string schema = R"({"$ref":"#/$defs/0","$defs":{)";
  constexpr int kLength = 100000;
  for (int i = 0; i < kLength; ++i) {
    schema += fmt::format("\"{}\":{{\"$ref\":\"#/$defs/{}\"}},", i, i + 1);
  }
  schema += fmt::format("\"{}\":{{}}}}}}", kLength);
  EXPECT_EQ(CheckJsonSchema(Parse(schema)), std::nullopt);
}

TEST(JsonSchemaCheck, ResourcesAreFoundByTheEndsOfIdentifiers) {
  for (std::string_view valid :
       {R"({"$ref":"a.json","$defs":{"x":{"$id":"http://h/s/a.json"}}})",
        R"({"$ref":"s/a.json","$defs":{"x":{"$id":"http://h/s/a.json"}}})",
        R"({"$ref":"http://h/s/a.json","$defs":{"x":{"$id":"a.json"},"y":{"$id":"b/a.json"}}})",
        R"({"$ref":"a.json#/b","$defs":{"x":{"$id":"a.json"}}})"}) {
    EXPECT_EQ(CheckJsonSchema(Parse(valid)), std::nullopt) << valid;
  }
  for (std::string_view invalid :
       {R"({"$ref":"a.json","$defs":{"x":{"$id":"http://h/s/ba.json"}}})",
        R"({"$ref":"h/s","$defs":{"x":{"$id":"http://h/s/a.json"}}})"}) {
    EXPECT_NE(CheckJsonSchema(Parse(invalid)), std::nullopt) << invalid;
  }
}

// Comparing each reference with each identifier would take tens of seconds.
TEST(JsonSchemaCheck, ManyIdentifiersAndReferencesCostOneSearchEach) {
  constexpr int kCount = 12000;
  std::string definitions;
  std::string references;
  for (int i = 0; i < kCount; ++i) {
    const std::string_view comma = i > 0 ? "," : "";
    definitions += fmt::format("{}\"{}\":{{\"$id\":\"http://host/{}.json\"}}", comma, i, i);
    references += fmt::format("{}{{\"$ref\":\"{}.json\"}}", comma, kCount - 1 - i);
  }
  const std::string schema =
      fmt::format(R"({{"$defs":{{{}}},"anyOf":[{}]}})", definitions, references);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(CheckJsonSchema(Parse(schema)), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(StrictSchema, RecordedSchemasAreTransformedOrRefusedAlike) {
  const json::value cases = Load("strict_schema_cases.json");
  for (const json::value& test_case : cases.as_array()) {
    const bool is_tool = test_case.at("use").as_string() == "tool";
    const auto result = TransformStrictSchema(
        test_case.at("input"), is_tool ? StrictUse::kToolParameters : StrictUse::kResponse);
    const json::value* fault = test_case.as_object().if_contains("fault");
    SCOPED_TRACE(PythonJson(test_case));
    ASSERT_EQ(result.has_value(), fault == nullptr);
    if (fault != nullptr) {
      EXPECT_EQ(json::value(result.error()), *fault);
    } else {
      EXPECT_EQ(CompactJson(*result), CompactJson(test_case.at("schema")));
    }
  }
  EXPECT_EQ(cases.as_array().size(), 300u);
}

TEST(RegexSyntax, AcceptsWhatSchemasUse) {
  for (std::string_view pattern : {"",
                                   "^a$",
                                   "a|b|",
                                   "(a)(?:b)(?<n>c)\\1",
                                   "[a-z0-9_-]+",
                                   "[^\\]]",
                                   "a{2}",
                                   "a{2,}?",
                                   "a{1,3}+",
                                   "\\d\\D\\w\\W\\s\\S\\b\\B",
                                   "\\u00e9\\x41\\u{1F600}",
                                   "\\p{L}\\P{Lu}\\pN",
                                   "\\p{Script=Greek}",
                                   "(?=a)b(?!c)(?<=d)e(?<!f)g",
                                   "(?i)a(?m-s:b)",
                                   "(?>a)",
                                   "[[:alpha:]]",
                                   "[a-]",
                                   "[-a]",
                                   "é+",
                                   "a++",
                                   "\\/\\-\\_",
                                   "]",
                                   "}",
                                   "((((a))))*",
                                   "\\cA"}) {
    EXPECT_TRUE(IsRegexSyntax(pattern)) << pattern;
  }
}

TEST(RegexSyntax, RefusesWhatNoEngineReads) {
  for (std::string_view pattern : {"(",           ")",       "(a",
                                   "a)",          "[",       "[a",
                                   "[]",          "[^]",     "[z-a]",
                                   "[\\d-z]",     "*a",      "+",
                                   "?",           "a**",     "a???",
                                   "a{2,1}",      "a{",      "a{}",
                                   "a{,3}",       "x{a}",    "\\",
                                   "\\x4",        "\\u12",   "\\u{}",
                                   "\\u{110000}", "\\uD800", "\\p",
                                   "\\p{",        "\\p{}",   "\\c1",
                                   "\\0",         "\\1",     "(a)\\2",
                                   "\\q",         "[\\q]",   "(?",
                                   "(?<>a)",      "(?<1>a)", "(?<a>b)(?<a>c)",
                                   "(?#c)",       "(?P=n)",  "(?=a)*",
                                   "|*"}) {
    EXPECT_FALSE(IsRegexSyntax(pattern)) << pattern;
  }
}

TEST(RegexSyntax, DeepNestingCostsNoCallDepth) {
  const size_t depth = 1'000'000;
  const std::string open(depth, '(');
  EXPECT_TRUE(IsRegexSyntax(open + std::string(depth, ')')));
  EXPECT_FALSE(IsRegexSyntax(open));
  EXPECT_FALSE(IsRegexSyntax(std::string(depth, '[')));
}

}  // namespace
}  // namespace deepinfer
