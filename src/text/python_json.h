// JSON text equal to Python's json.dumps(value, ensure_ascii=False) (encoding.md §7): the form in
// which schemas and arguments appear in prompts.
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "text/conversation.h"

namespace deepinfer {

// Appends the text of `value` with ", " and ": " between elements; key order is kept.
// Precondition: nesting is bounded by the parser that made the value (json_text.h).
void WritePythonJson(const boost::json::value& value, std::string* out);
std::string PythonJson(const boost::json::value& value);

// The JSON text of schemas and arguments in a prompt. V4 prompts write small floats differently:
// 1e-7 and 0.00001 instead of 1e-07 and 1e-05.
std::string JsonForPrompt(PromptForm form, const boost::json::value& value);

// Same text as in V4 prompts, without spaces: "," and ":".
std::string CompactJson(const boost::json::value& value);

// Appends `text` as a JSON string with its quotes.
void WriteJsonString(std::string_view text, std::string* out);

// Shortest text that reads back as `number`, in Python's repr form: 1.0, 1e+20, 5e-324, -0.0.
std::string PythonFloat(double number);

}  // namespace deepinfer
