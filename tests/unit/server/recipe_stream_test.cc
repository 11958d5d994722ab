// Every recorded chat stream of the reference through the tokenizer, the parser and the writers.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/parse_tool.h"
#include "unit/server/stream_events.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// Where this implementation differs on purpose (encoding.md §16): the reference writes half a
// parameter into the arguments, here the parameter is left out and they stay valid JSON.
const std::map<std::string_view, std::string_view>& ArgumentsInstead() {
  static const std::map<std::string_view, std::string_view> instead = {
      {"chat_tool_bad_string_attr_ids_groups", "{}"},
      {"chat_tool_bad_string_attr_random", "{}"},
      {"chat_tool_no_string_attr_random", "{}"},
  };
  return instead;
}

std::vector<json::value> Cases() {
  std::vector<json::value> cases;
  std::ifstream file(testing::SourcePath("tests/data/text/recipe_stream_chat.jsonl"));
  std::string line;
  while (std::getline(file, line)) cases.push_back(json::parse(line));
  return cases;
}

std::vector<testing::JoinedEvent> Joined(const json::value& events) {
  std::vector<testing::JoinedEvent> joined;
  for (const json::value& event : events.as_array()) testing::AddChunk(event.at(2), &joined);
  return joined;
}

// The envelope is the same for every chunk of a stream.
std::vector<std::string> Envelopes(const json::value& events) {
  std::vector<std::string> envelopes;
  for (const json::value& event : events.as_array()) {
    json::object body = event.at(2).as_object();
    body.erase("choices");
    body.erase("usage");
    std::string text = json::serialize(body);
    if (envelopes.empty() || envelopes.back() != text) envelopes.push_back(std::move(text));
  }
  return envelopes;
}

void ReplaceArguments(std::string_view arguments, json::value* expect) {
  json::value& calls = expect->at("final").at("choices").at(0).at("message").at("tool_calls");
  calls.at(0).at("function").at("arguments") = arguments;
}

void Compare(const json::value& test, const json::value& got, bool compare_events) {
  json::value expect = test.at("expect");
  const auto name = std::string(test.at("name").as_string());
  const auto instead = ArgumentsInstead().find(name);
  if (instead != ArgumentsInstead().end()) ReplaceArguments(instead->second, &expect);
  EXPECT_EQ(json::serialize(got.at("final")), json::serialize(expect.at("final"))) << name;
  if (!compare_events) return;
  std::vector<testing::JoinedEvent> expected = Joined(expect.at("events"));
  if (instead != ArgumentsInstead().end()) {
    for (testing::JoinedEvent& event : expected) {
      if (event.kind == "arguments") event.text = instead->second;
    }
  }
  EXPECT_EQ(Joined(got.at("events")), expected) << name;
  EXPECT_EQ(Envelopes(got.at("events")), Envelopes(expect.at("events"))) << name;
}

TEST(RecipeStreamTest, RecordedChatStreamsGiveTheRecordedEventsAndBodies) {
  const std::vector<json::value> cases = Cases();
  ASSERT_EQ(cases.size(), 190u);
  for (const json::value& test : cases) {
    const Result<std::string> got =
        RunParse(testing::ReleasedTokenizer(), "chat", json::serialize(test));
    ASSERT_TRUE(got.ok()) << test.at("name") << got.status().ToString();
    Compare(test, json::parse(*got), true);
  }
}

TEST(RecipeStreamTest, SettingsFollowFromTheRequestAlone) {
  for (const json::value& test : Cases()) {
    json::value line = test;
    line.as_object().erase("parsing");
    const Result<std::string> got =
        RunParse(testing::ReleasedTokenizer(), "chat", json::serialize(line));
    ASSERT_TRUE(got.ok()) << test.at("name") << got.status().ToString();
    Compare(test, json::parse(*got), true);
  }
}

TEST(RecipeStreamTest, AnotherGroupingOfTheTokensGivesTheSameAnswer) {
  for (const json::value& test : Cases()) {
    std::vector<int32_t> ids;
    bool only_ids = true;
    for (const json::value& chunk : test.at("chunks").as_array()) {
      only_ids = only_ids && chunk.is_object() && chunk.as_object().contains("ids") &&
                 !chunk.as_object().contains("logprobs");
      if (!only_ids) break;
      for (int32_t id : testing::ToIds(chunk.at("ids"))) ids.push_back(id);
    }
    // A stop string ends the account at the end of its chunk, an unfinished code point holds its
    // chunk back, and dropped text shows one space per chunk: those depend on the grouping.
    const json::value& parsing = test.at("parsing");
    if (!only_ids || !parsing.at("stop_sequences").as_array().empty() ||
        parsing.at("parse_json_output").as_bool() ||
        std::string_view(test.at("name").as_string()).find("broken_utf8") !=
            std::string_view::npos) {
      continue;
    }
    for (size_t group : {size_t{1}, size_t{2}, size_t{5}, size_t{13}}) {
      json::value line = test;
      json::array chunks;
      for (size_t i = 0; i < ids.size(); i += group) {
        json::array one;
        for (size_t j = i; j < std::min(i + group, ids.size()); ++j) one.push_back(ids[j]);
        chunks.push_back(json::object{{"ids", std::move(one)}});
      }
      line.at("chunks") = std::move(chunks);
      const Result<std::string> got =
          RunParse(testing::ReleasedTokenizer(), "chat", json::serialize(line));
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      Compare(test, json::parse(*got), true);
    }
  }
}

TEST(ParseToolTest, RefusesLinesOfAnotherShape) {
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  const std::string parsing = R"("parsing":{"parse_tool_calls":false})";
  for (const std::string& line : {
           std::string("not json"),
           std::string("[]"),
           std::string("{}"),
           "{" + parsing + "}",
           "{" + parsing + R"(,"chunks":"x"})",
           "{" + parsing + R"(,"chunks":[1]})",
           "{" + parsing + R"(,"chunks":[{"ids":["a"]}]})",
           "{" + parsing + R"(,"chunks":[{"ids":[-1]}]})",
           "{" + parsing + R"(,"chunks":[{"ids":[1],"logprobs":[]}]})",
           "{" + parsing + R"(,"chunks":[{"ids":[1],"logprobs":[[1,2]]}]})",
           "{" + parsing + R"(,"chunks":[],"finish":1})",
           std::string(R"({"parsing":{"thinking_initial_stage":"x"},"chunks":[]})"),
           std::string(R"({"parsing":{"stop_sequences":[1]},"chunks":[]})"),
       }) {
    const Result<std::string> got = RunParse(tokenizer, "chat", line);
    ASSERT_FALSE(got.ok()) << line;
    EXPECT_EQ(got.status().code(), StatusCode::kInvalidRequest) << line;
  }
  EXPECT_FALSE(RunParse(tokenizer, "smoke", "{" + parsing + R"(,"chunks":[]})").ok());
}

}  // namespace
}  // namespace deepinfer
