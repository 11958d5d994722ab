// The strict JSON parser and the two JSON writers.
#include "text/json_text.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

#include "text/call_arguments.h"
#include "text/python_json.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

std::string FaultOf(std::string_view text) {
  JsonDocument document;
  JsonFailure failure;
  return ParseJson(text, &document, &failure) ? "" : failure.ToString();
}

json::value Parse(std::string_view text) {
  JsonDocument document;
  JsonFailure failure;
  EXPECT_TRUE(ParseJson(text, &document, &failure)) << text << ": " << failure.ToString();
  return document.root();
}

std::string Nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonText, RefusesWhatIsNotExactlyOneValue) {
  for (std::string_view text : {"",           " ",          "{",
                                "[1,]",       "{\"a\":1,}", "{a:1}",
                                "'a'",        "NaN",        "Infinity",
                                "-Infinity",  "tru",        "01",
                                "1.",         ".5",         "+1",
                                "1e",         "0x10",       "\"a",
                                "\"\\x\"",    "\"\\u12\"",  "1 2",
                                "{} {}",      "\"\t\"",     "/*c*/1",
                                "[1 2]",      "{\"a\" 1}",  "\xEF\xBB\xBF{}",
                                "[\"\xFF\"]", "\"\xC3\"",   "\"\xED\xA0\x80\""}) {
    EXPECT_NE(FaultOf(text), "") << text;
  }
  EXPECT_NE(FaultOf(std::string_view("{}\0", 3)), "");
}

TEST(JsonText, RefusesLoneSurrogatesInEscapes) {
  EXPECT_NE(FaultOf("\"\\ud800\""), "");
  EXPECT_NE(FaultOf("\"\\udc00\""), "");
  EXPECT_NE(FaultOf("\"\\ud800x\""), "");
  EXPECT_EQ(Parse("\"\\ud83d\\ude00\"").as_string(), "😀");
}

TEST(JsonText, FaultsNameLineAndColumn) {
  EXPECT_EQ(FaultOf("{\"a\":1} x"), "trailing characters at line 1 column 9");
  EXPECT_EQ(FaultOf("{\n\"a\": nan}").substr(0, 30), "unexpected character at line 2");
  EXPECT_EQ(FaultOf("{\"a\":1e999}").substr(0, 19), "number out of range");
  EXPECT_EQ(FaultOf("[1,").substr(0, 26), "unexpected end of the text");
}

TEST(JsonText, DepthIsBounded) {
  EXPECT_EQ(FaultOf(Nested(kMaxJsonDepth)), "");
  EXPECT_NE(FaultOf(Nested(kMaxJsonDepth + 1)).find("recursion limit"), std::string::npos);
  // Ends at the limit, whatever follows.
  const std::string huge(100'000'000, '[');
  EXPECT_NE(FaultOf(huge).find("column 128"), std::string::npos) << FaultOf(huge);
}

TEST(JsonText, NumbersAreExact) {
  EXPECT_EQ(Parse("-9223372036854775808").as_int64(), INT64_MIN);
  EXPECT_EQ(Parse("18446744073709551615").as_uint64(), UINT64_MAX);
  EXPECT_EQ(Parse("18446744073709551616").as_double(), 18446744073709551616.0);
  EXPECT_EQ(Parse("5e-324").as_double(), 5e-324);
  EXPECT_EQ(Parse("1e-400").as_double(), 0.0);
  EXPECT_EQ(Parse("0.1000000000000000055511151231257827").as_double(), 0.1);
  EXPECT_EQ(Parse("123456789012345678901234567890").as_double(), 123456789012345678901234567890.0);
  EXPECT_TRUE(std::signbit(Parse("-0").as_double()));
}

TEST(JsonText, RepeatedKeysKeepPlaceAndLastValueAndAreListed) {
  JsonDocument document;
  JsonFailure failure;
  ASSERT_TRUE(ParseJson(R"({"a":1,"m":[{"r":1,"r":2},{"x":{"y":1,"y":1}}],"a":{"b":3}})", &document,
                        &failure));
  EXPECT_EQ(CompactJson(document.root()), R"({"a":{"b":3},"m":[{"r":2},{"x":{"y":1}}]})");
  EXPECT_EQ(document.duplicate_paths(), (std::vector<std::string>{"m[0].r", "m[1].x.y", "a"}));
  ASSERT_TRUE(ParseJson("{\"a\":1,\"\\u0061\":2}", &document, &failure));
  EXPECT_EQ(document.duplicate_paths(), (std::vector<std::string>{"a"}));
  ASSERT_TRUE(ParseJson("{\"a\":[{\"b\":1},{\"b\":1}]}", &document, &failure));
  EXPECT_TRUE(document.duplicate_paths().empty());
}

TEST(JsonText, RepeatedKeysBeyondTheBoundAreReported) {
  std::string text = "{";
  for (size_t i = 0; i < kMaxDuplicatePaths + 2; ++i) text += "\"k\":1,";
  text.back() = '}';
  JsonDocument document;
  JsonFailure failure;
  ASSERT_TRUE(ParseJson(text, &document, &failure));
  EXPECT_TRUE(document.too_many_duplicates());
}

// Recorded with Python's json module.
TEST(PythonJson, EqualsPythonsDumps) {
  const json::array cases =
      json::parse(
          testing::ReadWholeFile(testing::SourcePath("tests/data/text/python_json_cases.json")))
          .as_array();
  EXPECT_EQ(cases.size(), 600u);
  for (const json::value& test_case : cases) {
    const auto& text = test_case.at("json").as_string();
    EXPECT_EQ(PythonJson(Parse({text.data(), text.size()})), test_case.at("dumps").as_string());
  }
}

TEST(PythonJson, FloatsHavePythonsForm) {
  EXPECT_EQ(PythonFloat(1), "1.0");
  EXPECT_EQ(PythonFloat(1e16), "1e+16");
  EXPECT_EQ(PythonFloat(9999999999999998), "9999999999999998.0");
  EXPECT_EQ(PythonFloat(1e-4), "0.0001");
  EXPECT_EQ(PythonFloat(1e-5), "1e-05");
  EXPECT_EQ(PythonFloat(-0.0), "-0.0");
  EXPECT_EQ(PythonFloat(1.5e300), "1.5e+300");
}

TEST(PythonJson, OlderPromptsAndConstraintsWriteSmallFloatsPlainly) {
  const json::value value = {1e-5, 1e-7, 1e20};
  EXPECT_EQ(JsonForPrompt(PromptForm::kV41, value), "[1e-05, 1e-07, 1e+20]");
  EXPECT_EQ(JsonForPrompt(PromptForm::kV4, value), "[0.00001, 1e-7, 1e+20]");
  EXPECT_EQ(CompactJson(value), "[0.00001,1e-7,1e+20]");
}

TEST(CallArguments, ObjectsAreSplitAndAnythingElseIsKeptAsText) {
  const auto split =
      SplitCallArguments(PromptForm::kV41, R"({"s":"a\"b","n":1.0,"s":"z","o":{"k":[]}})");
  ASSERT_EQ(split.size(), 3u);
  EXPECT_EQ(split[0].name, "s");
  EXPECT_EQ(split[0].value, "z");
  EXPECT_TRUE(split[0].is_string);
  EXPECT_EQ(split[1].value, "1.0");
  EXPECT_FALSE(split[1].is_string);
  EXPECT_EQ(split[2].value, "{\"k\": []}");
  for (std::string_view text :
       {"", "not json", "[1]", "3", "null", "\"{}\"", "{}x", "{\"a\":NaN}"}) {
    const auto whole = SplitCallArguments(PromptForm::kV41, text);
    ASSERT_EQ(whole.size(), 1u) << text;
    EXPECT_EQ(whole[0].name, "arguments");
    EXPECT_EQ(whole[0].value, text);
    EXPECT_TRUE(whole[0].is_string);
  }
  EXPECT_TRUE(SplitCallArguments(PromptForm::kV41, " { } ").empty());
}

}  // namespace
}  // namespace deepinfer
