// JSON text equal to Python's json.dumps(value, ensure_ascii=False) (encoding.md §7): the form in
// which schemas and arguments appear in prompts.
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

namespace deepinfer {

// Appends the text of `value` with ", " and ": " between elements; key order is kept.
// Precondition: nesting is bounded by the parser that made the value (json_text.h).
void WritePythonJson(const boost::json::value& value, std::string* out);
std::string PythonJson(const boost::json::value& value);

// Same text without spaces: "," and ":".
std::string CompactJson(const boost::json::value& value);

// Appends `text` as a JSON string with its quotes.
void WriteJsonString(std::string_view text, std::string* out);

// Shortest text that reads back as `number`, in Python's repr form: 1.0, 1e+20, 5e-324, -0.0.
std::string PythonFloat(double number);

}  // namespace deepinfer
