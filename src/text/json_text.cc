#include "text/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_set>

namespace deepinfer {
namespace {

namespace json = boost::json;
using ErrorCode = boost::json::error_code;
using View = boost::json::string_view;

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// Builds the value. Differs from the library's own handler in its numbers, which are correctly
// rounded and never infinite, and in counting the keys.
struct ValueHandler {
  static constexpr size_t max_object_size = kNoLimit;
  static constexpr size_t max_array_size = kNoLimit;
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  json::value_stack stack;
  std::string number;
  size_t num_keys = 0;

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode&) { return true; }
  bool on_object_end(size_t n, ErrorCode&) { return stack.push_object(n), true; }
  bool on_array_begin(ErrorCode&) { return true; }
  bool on_array_end(size_t n, ErrorCode&) { return stack.push_array(n), true; }
  bool on_key_part(View s, size_t, ErrorCode&) { return stack.push_chars(s), true; }
  bool on_key(View s, size_t, ErrorCode&) {
    ++num_keys;
    return stack.push_key(s), true;
  }
  bool on_string_part(View s, size_t, ErrorCode&) { return stack.push_chars(s), true; }
  bool on_string(View s, size_t, ErrorCode&) { return stack.push_string(s), true; }
  bool on_number_part(View s, ErrorCode&) {
    number.append(s.data(), s.size());
    return true;
  }
  bool on_int64(int64_t i, View s, ErrorCode&) {
    const bool negative = number.empty() ? s.starts_with('-') : number.front() == '-';
    number.clear();
    // A double, so that the sign survives.
    if (i == 0 && negative) return stack.push_double(-0.0), true;
    return stack.push_int64(i), true;
  }
  bool on_uint64(uint64_t u, View, ErrorCode&) {
    number.clear();
    return stack.push_uint64(u), true;
  }
  bool on_double(double approximate, View s, ErrorCode& ec) {
    number.append(s.data(), s.size());
    double exact = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), exact);
    number.clear();
    if (result.ec == std::errc::result_out_of_range) {
      if (!(std::abs(approximate) < 1)) {
        ec = json::error::exponent_overflow;
        return false;
      }
      exact = std::copysign(0.0, approximate);
    }
    return stack.push_double(exact), true;
  }
  bool on_bool(bool b, ErrorCode&) { return stack.push_bool(b), true; }
  bool on_null(ErrorCode&) { return stack.push_null(), true; }
  bool on_comment_part(View, ErrorCode&) { return true; }
  bool on_comment(View, ErrorCode&) { return true; }
};

// Second pass over a document that is known to have repeated keys: where they are.
struct DuplicateFinder {
  static constexpr size_t max_object_size = kNoLimit;
  static constexpr size_t max_array_size = kNoLimit;
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  struct Level {
    bool is_object = false;
    size_t num_elements = 0;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  std::vector<Level> levels;
  std::string key;
  std::vector<std::string> paths;
  bool too_many = false;

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode&) { return Open(true); }
  bool on_object_end(size_t, ErrorCode&) { return Close(); }
  bool on_array_begin(ErrorCode&) { return Open(false); }
  bool on_array_end(size_t, ErrorCode&) { return Close(); }
  bool on_key_part(View s, size_t, ErrorCode&) {
    key.append(s.data(), s.size());
    return true;
  }
  bool on_key(View s, size_t, ErrorCode&) {
    key.append(s.data(), s.size());
    Level& level = levels.back();
    level.key = std::exchange(key, {});
    if (!level.keys.insert(level.key).second) Report();
    return !too_many;
  }
  bool on_string_part(View, size_t, ErrorCode&) { return true; }
  bool on_string(View, size_t, ErrorCode&) { return Element(); }
  bool on_number_part(View, ErrorCode&) { return true; }
  bool on_int64(int64_t, View, ErrorCode&) { return Element(); }
  bool on_uint64(uint64_t, View, ErrorCode&) { return Element(); }
  bool on_double(double, View, ErrorCode&) { return Element(); }
  bool on_bool(bool, ErrorCode&) { return Element(); }
  bool on_null(ErrorCode&) { return Element(); }
  bool on_comment_part(View, ErrorCode&) { return true; }
  bool on_comment(View, ErrorCode&) { return true; }

 private:
  bool Open(bool is_object) {
    levels.emplace_back().is_object = is_object;
    return true;
  }
  bool Close() {
    levels.pop_back();
    return Element();
  }
  bool Element() {
    if (!levels.empty()) ++levels.back().num_elements;
    return true;
  }
  void Report() {
    if (paths.size() == kMaxDuplicatePaths) {
      too_many = true;
      return;
    }
    std::string path;
    for (const Level& level : levels) {
      if (!level.is_object) {
        path += fmt::format("[{}]", level.num_elements);
      } else {
        if (!path.empty()) path += '.';
        path += level.key;
      }
    }
    paths.push_back(std::move(path));
  }
};

size_t CountKeys(const json::value& value) {
  size_t count = 0;
  if (value.is_object()) {
    count = value.get_object().size();
    for (const auto& member : value.get_object()) count += CountKeys(member.value());
  } else if (value.is_array()) {
    for (const json::value& element : value.get_array()) count += CountKeys(element);
  }
  return count;
}

std::string ReasonOf(const ErrorCode& ec, std::string_view text, size_t offset) {
  if (ec == json::error::extra_data) return "trailing characters";
  if (ec == json::error::too_deep) return "recursion limit exceeded";
  if (ec == json::error::exponent_overflow) return "number out of range";
  if (ec == json::error::illegal_leading_surrogate ||
      ec == json::error::illegal_trailing_surrogate || ec == json::error::expected_utf16_escape) {
    return "lone surrogate in a string";
  }
  if (ec == json::error::incomplete || offset >= text.size()) return "unexpected end of the text";
  if (ec == json::error::syntax) return "unexpected character";
  return ec.message();
}

json::parse_options ParseOptions() {
  json::parse_options options;
  options.max_depth = static_cast<size_t>(kMaxJsonDepth);
  return options;
}

}  // namespace

std::string JsonFailure::ToString() const {
  return fmt::format("{} at line {} column {}", reason, line, column);
}

JsonDocument::JsonDocument() : root_(std::make_unique<json::value>()) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;

bool ParseJson(std::string_view text, JsonDocument* document, JsonFailure* failure) {
  json::basic_parser<ValueHandler> parser(ParseOptions());
  parser.handler().stack.reset();
  ErrorCode ec;
  size_t offset = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && offset < text.size()) ec = json::error::extra_data;
  if (ec) {
    offset = std::min(offset, text.size());
    failure->offset = offset;
    failure->reason = ReasonOf(ec, text, offset);
    const std::string_view before = text.substr(0, offset);
    failure->line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t last_newline = before.rfind('\n');
    failure->column = 1 + offset - (last_newline == std::string_view::npos ? 0 : last_newline + 1);
    return false;
  }
  *document->root_ = parser.handler().stack.release();
  document->duplicate_paths_.clear();
  document->too_many_duplicates_ = false;
  if (CountKeys(*document->root_) != parser.handler().num_keys) {
    json::basic_parser<DuplicateFinder> finder(ParseOptions());
    finder.write_some(false, text.data(), text.size(), ec);
    document->duplicate_paths_ = std::move(finder.handler().paths);
    document->too_many_duplicates_ = finder.handler().too_many;
  }
  return true;
}

}  // namespace deepinfer
