// Recorded ids of the released tokenizer and of the demo model's prompts.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <sstream>

#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::DemoTokenizer;
using testing::Encode;
using testing::EncodeWithSpecials;
using testing::ReleasedTokenizer;
using testing::ToIds;

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

json::array LoadCases() {
  return json::parse(
             testing::ReadWholeFile(testing::SourcePath("tests/data/text/tokenizer_cases.json")))
      .as_array();
}

TEST(TokenizerVectors, EncodingGivesTheRecordedIds) {
  size_t num_cases = 0;
  for (const json::value& value : LoadCases()) {
    const json::object& test_case = value.as_object();
    if (test_case.contains("decode_only")) continue;
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const json::value* hex = test_case.if_contains("bytes_hex");
    const std::string text = hex != nullptr ? FromHex(std::string_view(hex->as_string()))
                                            : json::value_to<std::string>(test_case.at("text"));
    const std::vector<int32_t> ids = ToIds(test_case.at("ids"));
    const json::value& plain = test_case.at("ids_plain");
    EXPECT_EQ(EncodeWithSpecials(ReleasedTokenizer(), text), ids);
    EXPECT_EQ(Encode(ReleasedTokenizer(), text), plain.is_array() ? ToIds(plain) : ids);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 133u);
}

TEST(TokenizerVectors, DecodingGivesTheRecordedText) {
  size_t num_cases = 0;
  for (const json::value& value : LoadCases()) {
    const json::object& test_case = value.as_object();
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const bool decode_only = test_case.contains("decode_only");
    const std::string text =
        json::value_to<std::string>(test_case.at(decode_only ? "decoded" : "text"));
    const std::string decoded = ReleasedTokenizer().Decode(ToIds(test_case.at("ids")));
    if (decode_only || test_case.at("decoded_equals_text").as_bool()) {
      EXPECT_EQ(decoded, text);
    } else {
      EXPECT_NE(decoded, text);
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 137u);
}

TEST(TokenizerVectors, ChatTurnOfTheSpecification) {
  const std::vector<int32_t> expected = {0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128822};
  EXPECT_EQ(
      EncodeWithSpecials(ReleasedTokenizer(),
                         "<｜begin▁of▁sentence｜><｜User｜>What is 2+2?<｜Assistant｜></think>"),
      expected);
}

TEST(TokenizerVectors, DemoModelPrompts) {
  std::istringstream lines(
      testing::ReadWholeFile(testing::SourcePath("models/deepinfer-tiny/cases.jsonl")));
  size_t num_cases = 0;
  for (std::string line; std::getline(lines, line);) {
    const json::value test_case = json::parse(line);
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const auto prompt = json::value_to<std::string>(test_case.at("prompt"));
    const std::vector<int32_t> ids = ToIds(test_case.at("prompt_ids"));
    EXPECT_EQ(EncodeWithSpecials(DemoTokenizer(), prompt), ids);
    EXPECT_EQ(DemoTokenizer().Decode(ids), prompt);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 360u);
}

}  // namespace
}  // namespace deepinfer
