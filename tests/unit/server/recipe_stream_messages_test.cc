// Every recorded Messages stream of the reference through the tokenizer, the parser and the writer.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/parse_tool.h"
#include "unit/server/named_events.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// The end token is never text here; the reference shows it.
bool FeedsTheEndToken(std::string_view name) { return name == "messages_ids_eos"; }

TEST(RecipeStreamMessages, RecordedStreamsGiveTheRecordedEventsAndBodies) {
  std::ifstream file(testing::SourcePath("tests/data/text/recipe_stream_messages.jsonl"));
  size_t number = 0;
  for (std::string line; std::getline(file, line); ++number) {
    const json::value test = json::parse(line);
    const std::string name(test.at("name").as_string());
    if (FeedsTheEndToken(name)) continue;
    const Result<std::string> text = RunParse(testing::ReleasedTokenizer(), "messages", line);
    ASSERT_TRUE(text.ok()) << name << text.status().ToString();
    const json::value got = json::parse(*text);
    const json::value& expect = test.at("expect");
    EXPECT_EQ(json::serialize(got.at("final")), json::serialize(expect.at("final"))) << name;
    EXPECT_EQ(testing::JoinNamedEvents(got.at("events")),
              testing::JoinNamedEvents(expect.at("events")))
        << name;
  }
  EXPECT_EQ(number, 85u);
}

TEST(RecipeStreamMessages, SettingsFollowFromTheRequestAlone) {
  std::ifstream file(testing::SourcePath("tests/data/text/recipe_stream_messages.jsonl"));
  for (std::string line; std::getline(file, line);) {
    json::value test = json::parse(line);
    const std::string name(test.at("name").as_string());
    if (FeedsTheEndToken(name)) continue;
    test.as_object().erase("parsing");
    const Result<std::string> text =
        RunParse(testing::ReleasedTokenizer(), "messages", json::serialize(test));
    ASSERT_TRUE(text.ok()) << name << text.status().ToString();
    EXPECT_EQ(json::serialize(json::parse(*text).at("final")),
              json::serialize(test.at("expect").at("final")))
        << name;
  }
}

}  // namespace
}  // namespace deepinfer
