// The recorded conversions of Chat Completions requests: prompt, ids, settings and refusals.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "server/encode_tool.h"
#include "support/source_dir.h"
#include "text/json_text.h"
#include "text/python_json.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

const std::string kDataDir = SourceDir() + "/tests/data/";

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

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

json::value ParseOrDie(const std::string& text) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(text, &document, &failure)) {
    ADD_FAILURE() << failure.ToString();
    return {};
  }
  return document.root();
}

const Tokenizer& FullTokenizer() {
  static const auto kTokenizer =
      std::move(Tokenizer::Load(kDataDir + "deepseek_v41/tokenizer.json").value());
  return *kTokenizer;
}

std::string BodyOf(const json::object& test_case) {
  if (const json::value* raw = test_case.if_contains("raw")) {
    return std::string(raw->get_string());
  }
  return PythonJson(test_case.at("request"));
}

EncodeOutcome Encode(const json::object& test_case) {
  std::vector<std::pair<std::string, std::string>> options;
  if (const json::value* given = test_case.if_contains("options")) {
    for (const auto& option : given->get_object()) {
      options.emplace_back(std::string(option.key()), PythonJson(option.value()));
    }
  }
  auto outcome = RunEncode(FullTokenizer(), "chat", options, BodyOf(test_case));
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  return outcome.ok() ? *outcome : EncodeOutcome{"{}", 1};
}

void ExpectSameError(const std::string& name, const json::object& expected,
                     const EncodeOutcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 2) << name;
  const json::value actual = ParseOrDie(outcome.json_line);
  const json::value* error = actual.get_object().if_contains("error");
  ASSERT_NE(error, nullptr) << name << ": accepted, expected " << PythonJson(expected);
  const json::object& fields = error->get_object();
  EXPECT_EQ(fields.at("status"), expected.at("status")) << name;
  EXPECT_EQ(fields.at("stage"), expected.at("stage")) << name << PythonJson(fields);
  if (expected.at("stage").get_string() != "convert") return;
  for (const char* field : {"type", "param", "code"}) {
    EXPECT_EQ(fields.at(field), expected.at(field)) << name << " " << field;
  }
  if (OtherWords().count(name) > 0) return;
  EXPECT_EQ(fields.at("message"), expected.at("message")) << name;
}

void ExpectSameConversion(const std::string& name, json::object expected,
                          const EncodeOutcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << name << outcome.json_line;
  const json::value actual = ParseOrDie(outcome.json_line);
  expected.erase("encoding");  // an input of the tool, not a result
  for (const auto& field : expected) {
    const json::value* value = actual.get_object().if_contains(field.key());
    ASSERT_NE(value, nullptr) << name << ": no " << field.key() << " in "
                              << outcome.json_line.substr(0, 300);
    EXPECT_EQ(PythonJson(*value), PythonJson(field.value())) << name << ": " << field.key();
  }
  EXPECT_EQ(actual.get_object().size(), expected.size()) << name;
}

TEST(RecipeChat, EveryRecordedCaseConvertsAlike) {
  const json::value cases = ParseOrDie(ReadFile(kDataDir + "text/recipe_chat.json"));
  size_t num_skipped = 0;
  for (const json::value& element : cases.get_array()) {
    const json::object& test_case = element.get_object();
    const std::string name(test_case.at("name").get_string());
    if (Deviations().count(name) > 0) {
      ++num_skipped;
      continue;
    }
    const json::object& expected = test_case.at("expect").get_object();
    const EncodeOutcome outcome = Encode(test_case);
    if (const json::value* error = expected.if_contains("error")) {
      ExpectSameError(name, error->get_object(), outcome);
    } else {
      ExpectSameConversion(name, expected, outcome);
    }
  }
  EXPECT_EQ(cases.get_array().size(), 297u);
  EXPECT_EQ(num_skipped, Deviations().size());
}

// Random requests of the same kind, recorded the same way. Ids follow from prompt and ranges.
TEST(RecipeChat, EveryRandomCaseConvertsAlike) {
  const json::value cases = ParseOrDie(ReadFile(kDataDir + "text/chat_conversions.json"));
  size_t number = 0;
  for (const json::value& element : cases.get_array()) {
    const json::object& test_case = element.get_object();
    const std::string name = "case " + std::to_string(number++);
    const EncodeOutcome outcome = Encode(test_case);
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
  EXPECT_FALSE(RunEncode(FullTokenizer(), "morse", {}, "{}").ok());
  EXPECT_FALSE(RunEncode(FullTokenizer(), "chat", {{"colour", "1"}}, "{}").ok());
  EXPECT_FALSE(RunEncode(FullTokenizer(), "chat", {{"default_thinking_mode", "1"}}, "{}").ok());
  EXPECT_FALSE(RunEncode(FullTokenizer(), "chat", {{"default_thinking_mode", "{"}}, "{}").ok());
  EXPECT_FALSE(RunEncode(FullTokenizer(), "chat", {{"model_aliases", R"({"x":"v9"})"}}, "{}").ok());
}

TEST(RecipeChat, ModelVersionOptionServesEveryName) {
  const std::string body = R"({"model":"any","messages":[{"role":"user","content":"q"}]})";
  const auto outcome = RunEncode(FullTokenizer(), "chat", {{"model_version", "\"v41\""}}, body);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->exit_code, 0);
  const auto refused = RunEncode(FullTokenizer(), "chat", {}, body);
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->exit_code, 2);
}

// A deviation is not a hole: what happens instead is pinned here.
TEST(RecipeChat, DeviationsFollowTheDocumentedRule) {
  const json::value cases = ParseOrDie(ReadFile(kDataDir + "text/recipe_chat.json"));
  for (const json::value& element : cases.get_array()) {
    const json::object& test_case = element.get_object();
    const std::string name(test_case.at("name").get_string());
    const auto deviation = Deviations().find(name);
    if (deviation == Deviations().end()) continue;
    SCOPED_TRACE(name + ": " + deviation->second);
    const EncodeOutcome outcome = Encode(test_case);
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
