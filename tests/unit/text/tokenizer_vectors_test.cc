// Recorded ids of the released tokenizer and of the demo model's prompts.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
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

std::string TextOf(const json::object& test_case) {
  const json::value* hex = test_case.if_contains("bytes_hex");
  if (hex != nullptr) return FromHex(std::string_view(hex->as_string()));
  return json::value_to<std::string>(test_case.at("text"));
}

TEST(TokenizerVectors, EncodingGivesTheRecordedIds) {
  size_t num_cases = 0;
  for (const json::value& value : LoadCases()) {
    const json::object& test_case = value.as_object();
    if (test_case.contains("decode_only")) continue;
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const std::string text = TextOf(test_case);
    const std::vector<int32_t> ids = ToIds(test_case.at("ids"));
    const json::value& plain = test_case.at("ids_plain");
    EXPECT_EQ(EncodeWithSpecials(ReleasedTokenizer(), text), ids);
    EXPECT_EQ(Encode(ReleasedTokenizer(), text), plain.is_array() ? ToIds(plain) : ids);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 133u);
}

// The V4 vocabulary differs from the released file in nine added tokens. The cases use three of
// the older strings; the other six occur in no case and are made up here.
std::unique_ptr<Tokenizer> OlderTokenizer() {
  json::value document = json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/deepseek_v41/tokenizer.json")));
  for (json::value& token : document.at("added_tokens").as_array()) {
    const int64_t id = token.at("id").as_int64();
    json::value& content = token.at("content");
    if (id == 129279) {
      content = "<｜image｜>";
    } else if (id == 129264) {
      content = "<｜image2｜>";
    } else if (id == 129266) {
      content = "<｜table｜>";
    } else if (id == 128799 || (id >= 129265 && id <= 129270)) {
      content = "<older " + std::to_string(id) + ">";
    }
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json::serialize(document));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerVectors, OlderAddedTokensGiveTheRecordedIds) {
  const std::unique_ptr<Tokenizer> older = OlderTokenizer();
  ASSERT_NE(older, nullptr);
  size_t num_different = 0;
  for (const json::value& value : LoadCases()) {
    const json::object& test_case = value.as_object();
    if (test_case.contains("decode_only")) continue;
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const json::value* ids_v4 = test_case.if_contains("ids_v4");
    if (ids_v4 != nullptr) ++num_different;
    EXPECT_EQ(EncodeWithSpecials(*older, TextOf(test_case)),
              ToIds(ids_v4 != nullptr ? *ids_v4 : test_case.at("ids")));
  }
  EXPECT_EQ(num_different, 6u);
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
