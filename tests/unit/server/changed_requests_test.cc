// Recorded requests that were changed at random, others that were composed at random, and what the
// DeepSeek recipe made of them: rules that nobody wrote a case for.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "unit/server/recipe_requests.h"

namespace deepinfer::testing {
namespace {

namespace json = boost::json;

// The kind of a constraint is recorded, not its text.
void KeepKindOfConstraint(json::object* converted) {
  json::value& constraint = converted->at("inference").at("output_constraint");
  if (constraint.is_object()) constraint = json::value(constraint.at("kind"));
}

void ExpectAlike(const std::string& path, size_t num_cases) {
  std::ifstream file(SourcePath(path));
  size_t number = 0;
  for (std::string line; std::getline(file, line); ++number) {
    const json::value test = ParseOrDie(line);
    const std::string name = "line " + std::to_string(number + 1);
    const json::string& dialect = test.at("dialect").get_string();
    const auto outcome =
        RunEncodeLine(ReleasedTokenizer(), {dialect.data(), dialect.size()}, {}, line);
    ASSERT_TRUE(outcome.ok()) << name << outcome.status().ToString();
    const json::object& expected = test.at("expect").get_object();
    json::object actual = ParseOrDie(outcome->json_line).get_object();
    const json::value* error = expected.if_contains("error");
    ASSERT_EQ(error != nullptr, actual.contains("error")) << name << outcome->json_line;
    if (error != nullptr) {
      for (const auto& field : error->get_object()) {
        EXPECT_EQ(actual.at("error").at(field.key()), field.value()) << name;
      }
      continue;
    }
    KeepKindOfConstraint(&actual);
    for (const auto& field : expected) {
      EXPECT_EQ(PythonJson(actual.at(field.key())), PythonJson(field.value()))
          << name << ": " << field.key();
    }
  }
  EXPECT_EQ(number, num_cases);
}

TEST(ChangedRequests, EveryCaseConvertsAlike) {
  ExpectAlike("tests/data/text/changed_requests.jsonl", 383);
}

// Texts that look like markup, halves of characters, empty parts, odd spellings of arguments.
TEST(ComposedRequests, EveryCaseConvertsAlike) {
  ExpectAlike("tests/data/text/composed_requests.jsonl", 120);
}

}  // namespace
}  // namespace deepinfer::testing
