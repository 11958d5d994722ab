// Compares recorded request conversions with what `deepinfer encode` makes of the same bodies.
// Thread rule: tests run on one thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/encode_tool.h"
#include "text/json_text.h"
#include "text/python_json.h"
#include "unit/text/text_test_data.h"

namespace deepinfer::testing {

using CaseReasons = std::map<std::string, std::string>;  // name of a case -> why it differs

inline boost::json::value ParseOrDie(const std::string& text) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(text, &document, &failure)) {
    ADD_FAILURE() << failure.ToString();
    return {};
  }
  return document.root();
}

// A file of tests/data/text.
inline boost::json::value ReadCases(std::string_view file) {
  return ParseOrDie(ReadWholeFile(SourcePath("tests/data/text") / file));
}

inline EncodeOutcome Encode(std::string_view dialect, const boost::json::object& test_case) {
  const boost::json::value* raw = test_case.if_contains("raw");
  const std::string body =
      raw == nullptr ? PythonJson(test_case.at("request")) : std::string(raw->get_string());
  std::vector<std::pair<std::string, std::string>> options;
  if (const boost::json::value* given = test_case.if_contains("options")) {
    for (const auto& option : given->get_object()) {
      options.emplace_back(std::string(option.key()), PythonJson(option.value()));
    }
  }
  auto outcome = RunEncode(ReleasedTokenizer(), dialect, options, body);
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  return outcome.ok() ? *outcome : EncodeOutcome{"{}", 1};
}

inline void ExpectSameError(const std::string& name, const boost::json::object& expected,
                            const CaseReasons& other_words, const EncodeOutcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 2) << name;
  const boost::json::value actual = ParseOrDie(outcome.json_line);
  const boost::json::value* error = actual.get_object().if_contains("error");
  ASSERT_NE(error, nullptr) << name << ": accepted, expected " << PythonJson(expected);
  const boost::json::object& fields = error->get_object();
  EXPECT_EQ(fields.at("status"), expected.at("status")) << name;
  EXPECT_EQ(fields.at("stage"), expected.at("stage")) << name << PythonJson(fields);
  if (expected.at("stage").get_string() != "convert") return;
  for (const char* field : {"type", "param", "code"}) {
    EXPECT_EQ(fields.at(field), expected.at(field)) << name << " " << field;
  }
  if (other_words.count(name) > 0) return;
  EXPECT_EQ(fields.at("message"), expected.at("message")) << name;
}

inline void ExpectSameConversion(const std::string& name, boost::json::object expected,
                                 const EncodeOutcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << name << outcome.json_line;
  const boost::json::value actual = ParseOrDie(outcome.json_line);
  expected.erase("encoding");  // an input of the tool, not a result
  for (const auto& field : expected) {
    const boost::json::value* value = actual.get_object().if_contains(field.key());
    ASSERT_NE(value, nullptr) << name << ": no " << field.key() << " in "
                              << outcome.json_line.substr(0, 300);
    if (field.key() == "namespace_tool_map") {
      EXPECT_EQ(*value, field.value()) << name;  // a map, recorded in no order
    } else {
      EXPECT_EQ(PythonJson(*value), PythonJson(field.value())) << name << ": " << field.key();
    }
  }
  EXPECT_EQ(actual.get_object().size(), expected.size()) << name;
}

// Every case of a file except those in `deviations`; returns the number of cases in the file.
inline size_t ExpectRecordedConversions(std::string_view dialect, std::string_view file,
                                        const CaseReasons& deviations = {},
                                        const CaseReasons& other_words = {}) {
  const boost::json::value cases = ReadCases(file);
  size_t num_skipped = 0;
  for (const boost::json::value& element : cases.get_array()) {
    const boost::json::object& test_case = element.get_object();
    const std::string name(test_case.at("name").get_string());
    if (deviations.count(name) > 0) {
      ++num_skipped;
      continue;
    }
    const boost::json::object& expected = test_case.at("expect").get_object();
    const EncodeOutcome outcome = Encode(dialect, test_case);
    if (const boost::json::value* error = expected.if_contains("error")) {
      ExpectSameError(name, error->get_object(), other_words, outcome);
    } else {
      ExpectSameConversion(name, expected, outcome);
    }
  }
  EXPECT_EQ(num_skipped, deviations.size());
  return cases.get_array().size();
}

}  // namespace deepinfer::testing
