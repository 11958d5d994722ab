// Reads typed fields of a JSON object and names the path of the first fault, as in
// messages[2].content[0].type (api.md §12). Internal to the request validators, which include the
// JSON library anyway.
// Thread rule: one reader per request.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/api_error.h"
#include "text/json_text.h"

namespace deepinfer {

class FieldRecorder;

// What all readers of one body share: the first error stops nothing but is the one reported, so
// that validators stay free of branches.
struct ReadState {
  const JsonDocument* document = nullptr;
  bool reject_duplicate_keys = true;
  std::optional<ApiError> error;
  // Notes what is read instead of checking it; absent objects then read like empty ones, and
  // nothing fails.
  FieldRecorder* recorder = nullptr;

  void Fail(std::string path, std::string code, std::string message);
  bool IsDuplicate(std::string_view path);

 private:
  std::unordered_set<std::string_view> duplicates_;  // filled on first use
};

class ObjectReader {
 public:
  // Fails with invalid_type unless `value` is an object; it then reads like an empty one whose
  // missing fields are not reported.
  ObjectReader(ReadState* state, const boost::json::value& value, std::string path);

  bool valid() const { return object_ != nullptr; }
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view key) const;

  // The field; null when it is absent or JSON null. Refuses the key if it was repeated.
  const boost::json::value* Find(std::string_view key);
  // The field, JSON null included; absent fields fail with missing_required_parameter.
  const boost::json::value* Require(std::string_view key);

  std::optional<std::string> String(std::string_view key);
  std::string RequiredString(std::string_view key);
  std::optional<bool> Bool(std::string_view key);
  std::optional<double> Number(std::string_view key);
  // Integers outside [min, max] fail here, as they do not fit the field's type.
  std::optional<int64_t> Integer(std::string_view key, int64_t min, int64_t max);
  const boost::json::array* Array(std::string_view key);
  std::optional<ObjectReader> Object(std::string_view key);
  // One of `names`; fails with invalid_value for other strings.
  std::optional<size_t> OneOf(std::string_view key, const std::vector<std::string_view>& names);
  size_t RequiredOneOf(std::string_view key, const std::vector<std::string_view>& names);

  // For descriptions: the field may also have this JSON type, which the caller checks.
  void NoteAlternative(std::string_view key, std::string_view type) { NoteType(key, type); }

  void WrongType(std::string_view key, std::string_view expected);
  void Fail(std::string_view key, std::string code, std::string message);

  // Keys of the object that nobody asked for.
  std::vector<std::string> UnreadKeys() const;

 private:
  void NoteType(std::string_view key, std::string_view type);
  void NoteNames(std::string_view key, const std::vector<std::string_view>& names);
  std::optional<size_t> Match(std::string_view key, const boost::json::value& value,
                              const std::vector<std::string_view>& names);

  ReadState* state_;
  const boost::json::object* object_ = nullptr;
  std::string path_;
  std::vector<std::string_view> read_keys_;
};

std::string IndexPath(std::string_view array_path, size_t index);

// "string", "integer", ... for messages.
std::string_view JsonTypeName(const boost::json::value& value);

// The numeric value of any JSON number.
std::optional<double> AsNumber(const boost::json::value& value);

}  // namespace deepinfer
