// Every recorded Messages and Responses stream of the reference through the tokenizer, the parser
// and the writers.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/parse_tool.h"
#include "unit/server/named_events.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// The end token is never text here, the reference shows it; and a parameter whose `string` is
// neither true nor false is left out, the reference writes half of it (docs/encoding.md section
// 16).
bool DiffersOnPurpose(std::string_view name) {
  static const std::set<std::string_view> kNames = {"messages_ids_eos", "responses_ids_eos",
                                                    "responses_tool_no_string_attr_random"};
  return kNames.count(name) > 0;
}

// Dropped text of JSON answers shows as one space per chunk, in places that depend on the chunks.
bool DropsText(std::string_view name) { return name.find("_json_") != std::string_view::npos; }

std::vector<json::value> Cases(const std::string& dialect) {
  std::vector<json::value> cases;
  std::ifstream file(testing::SourcePath("tests/data/text/recipe_stream_" + dialect + ".jsonl"));
  for (std::string line; std::getline(file, line);) cases.push_back(json::parse(line));
  return cases;
}

// The recordings spell the image placeholder differently; its id is the same.
std::string SpelledAsRecorded(std::string text) {
  const std::string_view own = "<｜deepseek_image｜>";
  for (size_t at = text.find(own); at != std::string::npos; at = text.find(own)) {
    text.replace(at, own.size(), "<｜image｜>");
  }
  return text;
}

json::value Replay(const std::string& dialect, const json::value& test) {
  const Result<std::string> text =
      RunParse(testing::ReleasedTokenizer(), dialect, json::serialize(test));
  EXPECT_TRUE(text.ok()) << test.at("name") << text.status().ToString();
  return text.ok() ? json::parse(SpelledAsRecorded(*text)) : json::value();
}

class RecipeStreamNamed : public ::testing::TestWithParam<std::pair<std::string, size_t>> {};

TEST_P(RecipeStreamNamed, RecordedStreamsGiveTheRecordedEventsAndBodies) {
  const auto& [dialect, num_cases] = GetParam();
  const std::vector<json::value> cases = Cases(dialect);
  EXPECT_EQ(cases.size(), num_cases);
  for (const json::value& test : cases) {
    const std::string name(test.at("name").as_string());
    if (DiffersOnPurpose(name)) continue;
    const json::value got = Replay(dialect, test);
    ASSERT_FALSE(got.is_null());
    const json::value& expect = test.at("expect");
    EXPECT_EQ(got.at("final"), expect.at("final")) << name;
    if (DropsText(name)) continue;
    EXPECT_EQ(testing::JoinNamedEvents(got.at("events")),
              testing::JoinNamedEvents(expect.at("events")))
        << name;
  }
}

TEST_P(RecipeStreamNamed, SettingsFollowFromTheRequestAlone) {
  const std::string& dialect = GetParam().first;
  for (json::value test : Cases(dialect)) {
    const std::string name(test.at("name").as_string());
    if (DiffersOnPurpose(name)) continue;
    test.as_object().erase("parsing");
    const json::value got = Replay(dialect, test);
    ASSERT_FALSE(got.is_null());
    EXPECT_EQ(got.at("final"), test.at("expect").at("final")) << name;
  }
}

TEST(RecipeStreamNumbers, ResponsesEventsAreNumberedWithoutGaps) {
  for (const json::value& test : Cases("responses")) {
    const json::value got = Replay("responses", test);
    int64_t number = 0;
    for (const json::value& event : got.at("events").as_array()) {
      EXPECT_EQ(event.at(2).at("sequence_number").as_int64(), number++) << test.at("name");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, RecipeStreamNamed,
                         ::testing::Values(std::pair<std::string, size_t>("messages", 85),
                                           std::pair<std::string, size_t>("responses", 94)),
                         [](const auto& dialect) { return dialect.param.first; });

}  // namespace
}  // namespace deepinfer
