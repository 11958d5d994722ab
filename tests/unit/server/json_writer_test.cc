#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>
#include <string>

#include "base/json_escape.h"
#include "server/logprobs.h"

namespace deepinfer {
namespace {

TEST(JsonWriterTest, PlacesCommasBetweenElementsOnly) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Key("a").BeginArray().Int(1).Null().Bool(true).BeginObject().EndObject().EndArray();
  json.Field("b", "x").Field("c", int64_t{-5});
  json.Key("d").Raw("{\"e\":[]}");
  json.Key("f").BeginArray().EndArray();
  json.EndObject();
  EXPECT_EQ(out, R"({"a":[1,null,true,{}],"b":"x","c":-5,"d":{"e":[]},"f":[]})");
}

TEST(JsonWriterTest, FloatsReadBackExactly) {
  for (float number : {0.0f, -0.5f, 0.1f, -1.25f, -9999.0f, 1e-30f, 3.4e38f,
                       std::numeric_limits<float>::denorm_min()}) {
    std::string out;
    JsonWriter(&out).Float(number);
    EXPECT_EQ(static_cast<float>(boost::json::parse(out).to_number<double>()), number) << out;
  }
}

TEST(JsonWriterTest, StringsAreEscapedByteByByte) {
  std::string every;
  for (int c = 0; c < 128; ++c) every += static_cast<char>(c);
  every += "é😀\xE2\x80\xA8";
  std::string whole;
  AppendJsonEscaped(every, &whole);
  std::string pieces;
  for (char c : every) AppendJsonEscaped({&c, 1}, &pieces);
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(boost::json::parse("\"" + whole + "\"").as_string(), every);
  std::string named;
  AppendJsonEscaped("\"\\\n\r\t\b\f\x01\x7f/", &named);
  EXPECT_EQ(named, "\\\"\\\\\\n\\r\\t\\b\\f\\u0001\x7f/");
}

TEST(LogprobsTest, TokensThatAreNotTextShowTheirBytes) {
  EXPECT_EQ(LogprobTokenText("é"), "é");
  EXPECT_EQ(LogprobTokenText("\xF0\x9F\x98"), "\\xf0\\x9f\\x98");
  EXPECT_EQ(LogprobTokenText("a\x80"), "a\\x80");
  EXPECT_EQ(CompletionsTokenText("é"), "é");
  EXPECT_EQ(CompletionsTokenText("a\x80"), "bytes:\\x61\\x80");
}

}  // namespace
}  // namespace deepinfer
