// Strict JSON parser for text from outside: bounded nesting, exact integers, correctly rounded
// doubles, valid UTF-8 only, no lone surrogates, no NaN or infinity, nothing behind the value.
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// A value nested this deep is accepted, one level more is refused. One below the documented limit
// of 128, as in the reference vectors, where the 128th opening bracket is the error.
inline constexpr int32_t kMaxJsonDepth = 127;

struct JsonFailure {
  std::string reason;  // "trailing characters", "number out of range", ...
  size_t offset = 0;   // byte at which parsing stopped
  size_t line = 1;     // both 1-based; the column counts bytes
  size_t column = 1;

  // "reason at line 1 column 7"
  std::string ToString() const;
};

// A parsed document. A repeated key keeps its first place and its last value; where that
// happened is listed, so that readers can refuse it for the keys they use.
class JsonDocument {
 public:
  JsonDocument();
  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;

  const boost::json::value& root() const { return *root_; }
  // Paths such as "messages[0].role", at most kMaxDuplicatePaths; `too_many_duplicates` if more.
  const std::vector<std::string>& duplicate_paths() const { return duplicate_paths_; }
  bool too_many_duplicates() const { return too_many_duplicates_; }

 private:
  friend bool ParseJson(std::string_view text, JsonDocument* document, JsonFailure* failure);

  std::unique_ptr<boost::json::value> root_;
  std::vector<std::string> duplicate_paths_;
  bool too_many_duplicates_ = false;
};

inline constexpr size_t kMaxDuplicatePaths = 1024;

// False and *failure set if `text` is not exactly one JSON value. Time and memory are linear in
// the accepted part of the text.
bool ParseJson(std::string_view text, JsonDocument* document, JsonFailure* failure);

}  // namespace deepinfer
