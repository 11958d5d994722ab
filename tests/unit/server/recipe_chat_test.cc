// The recorded conversions of Chat Completions requests: prompt, ids, settings and refusals.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <string>

#include "unit/server/recipe_requests.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using namespace testing;

// Cases in which this server deliberately goes beyond the official conversion (api.md §22).
const std::map<std::string, std::string>& Deviations() {
  static const std::map<std::string, std::string> kDeviations = {
      {"history_011", "an empty tool_calls list means no calls"},
      {"message_018", "the developer role is a system role"},
      {"param_058_max_completion_tokens_max_tokens", "max_completion_tokens wins over max_tokens"},
      {"param_077_n", "more than one choice is supported"},
  };
  return kDeviations;
}

// Refused alike, but in other words because the rule is wider here.
const std::map<std::string, std::string>& OtherWords() {
  static const std::map<std::string, std::string> kOtherWords = {
      {"param_078_n", "the valid range of n is larger"},
  };
  return kOtherWords;
}

TEST(RecipeChat, EveryRecordedCaseConvertsAlike) {
  EXPECT_EQ(ExpectRecordedConversions("chat", "recipe_chat.json", Deviations(), OtherWords()),
            297u);
}

// Random requests of the same kind, recorded the same way. Ids follow from prompt and ranges.
TEST(RecipeChat, EveryRandomCaseConvertsAlike) {
  const json::value cases = ReadCases("chat_conversions.json");
  size_t number = 0;
  for (const json::value& element : cases.get_array()) {
    const json::object& test_case = element.get_object();
    const std::string name = "case " + std::to_string(number++);
    const EncodeOutcome outcome = Encode("chat", test_case);
    const json::value* error = test_case.if_contains("error");
    if (error == nullptr) {
      json::object expected = test_case.at("expect").get_object();
      expected["ids"] = ParseOrDie(outcome.json_line).at("ids");
      ExpectSameConversion(name, std::move(expected), outcome);
      continue;
    }
    const json::value actual = ParseOrDie(outcome.json_line);
    ASSERT_EQ(outcome.exit_code, 2) << name;
    EXPECT_EQ(actual.at("error").at("stage"), error->at("stage")) << name;
    if (const json::value* message = error->get_object().if_contains("message")) {
      EXPECT_EQ(actual.at("error").at("message"), *message) << name;
    }
  }
  EXPECT_EQ(number, 400u);
}

TEST(RecipeChat, UnknownDialectsAndOptionsAreRefused) {
  EXPECT_FALSE(RunEncode(ReleasedTokenizer(), "morse", {}, "{}").ok());
  EXPECT_FALSE(RunEncode(ReleasedTokenizer(), "chat", {{"colour", "1"}}, "{}").ok());
  EXPECT_FALSE(RunEncode(ReleasedTokenizer(), "chat", {{"default_thinking_mode", "1"}}, "{}").ok());
  EXPECT_FALSE(RunEncode(ReleasedTokenizer(), "chat", {{"default_thinking_mode", "{"}}, "{}").ok());
  EXPECT_FALSE(
      RunEncode(ReleasedTokenizer(), "chat", {{"model_aliases", R"({"x":"v9"})"}}, "{}").ok());
}

TEST(RecipeChat, ModelVersionOptionServesEveryName) {
  const std::string body = R"({"model":"any","messages":[{"role":"user","content":"q"}]})";
  const auto outcome = RunEncode(ReleasedTokenizer(), "chat", {{"model_version", "\"v41\""}}, body);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->exit_code, 0);
  const auto refused = RunEncode(ReleasedTokenizer(), "chat", {}, body);
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->exit_code, 2);
}

// A deviation is not a hole: what happens instead is pinned here.
TEST(RecipeChat, DeviationsFollowTheDocumentedRule) {
  const json::value cases = ReadCases("recipe_chat.json");
  for (const json::value& element : cases.get_array()) {
    const json::object& test_case = element.get_object();
    const std::string name(test_case.at("name").get_string());
    const auto deviation = Deviations().find(name);
    if (deviation == Deviations().end()) continue;
    SCOPED_TRACE(name + ": " + deviation->second);
    const EncodeOutcome outcome = Encode("chat", test_case);
    EXPECT_EQ(outcome.exit_code, 0);
    const json::value actual = ParseOrDie(outcome.json_line);
    const std::string prompt(actual.at("prompt").get_string());
    if (name == "history_011") {
      EXPECT_NE(prompt.find("</think>hi<"), std::string::npos);
    }
    if (name == "message_018") {
      EXPECT_NE(prompt.find("\n\ndev<"), std::string::npos);
    }
    if (name.starts_with("param_058")) {
      EXPECT_EQ(actual.at("inference").at("max_tokens").to_number<int>(), 5);
    }
  }
}

}  // namespace
}  // namespace deepinfer
