#include "server/field_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/field_recorder.h"

namespace deepinfer {

namespace json = boost::json;

void ReadState::Fail(std::string path, std::string code, std::string message) {
  if (error || recorder != nullptr) return;
  error.emplace();
  error->stage = ErrorStage::kParse;
  error->code = std::move(code);
  error->message = std::move(message);
  if (!path.empty()) error->param = std::move(path);
}

bool ReadState::IsDuplicate(std::string_view path) {
  const std::vector<std::string>& paths = document->duplicate_paths();
  if (duplicates_.empty()) duplicates_.insert(paths.begin(), paths.end());
  return duplicates_.count(path) > 0;
}

std::string IndexPath(std::string_view array_path, size_t index) {
  return fmt::format("{}[{}]", array_path, index);
}

std::string_view JsonTypeName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "integer";
    case json::kind::double_:
      return "number";
    case json::kind::string:
      return "string";
    case json::kind::array:
      return "array";
    case json::kind::object:
      return "object";
  }
  return "unknown";
}

std::optional<double> AsNumber(const json::value& value) {
  switch (value.kind()) {
    case json::kind::int64:
      return static_cast<double>(value.get_int64());
    case json::kind::uint64:
      return static_cast<double>(value.get_uint64());
    case json::kind::double_:
      return value.get_double();
    default:
      return std::nullopt;
  }
}

ObjectReader::ObjectReader(ReadState* state, const json::value& value, std::string path)
    : state_(state), path_(std::move(path)) {
  if (value.is_object()) {
    object_ = &value.get_object();
    if (state_->recorder != nullptr) state_->recorder->VisitObject(path_);
    return;
  }
  state_->Fail(path_, "invalid_type",
               fmt::format("Invalid type for '{}': expected an object, but got {}.",
                           path_.empty() ? "body" : path_, JsonTypeName(value)));
}

std::string ObjectReader::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const json::value* ObjectReader::Find(std::string_view key) {
  if (object_ == nullptr) return nullptr;
  if (state_->recorder != nullptr) state_->recorder->NoteField(path_, key);
  read_keys_.push_back(key);
  const json::value* value = object_->if_contains({key.data(), key.size()});
  if (value == nullptr) return nullptr;
  if (state_->reject_duplicate_keys && !state_->document->duplicate_paths().empty()) {
    const std::string path = PathOf(key);
    if (state_->IsDuplicate(path)) {
      state_->Fail(path, "invalid_json", fmt::format("The key '{}' is given twice.", path));
    }
  }
  return value->is_null() ? nullptr : value;
}

const json::value* ObjectReader::Require(std::string_view key) {
  if (object_ == nullptr) return nullptr;
  const bool is_first = std::find(read_keys_.begin(), read_keys_.end(), key) == read_keys_.end();
  if (state_->recorder != nullptr && is_first) state_->recorder->NoteRequired(path_, key);
  const json::value* value = Find(key);
  if (value != nullptr) return value;
  const json::value* null_value = object_->if_contains({key.data(), key.size()});
  if (null_value != nullptr) return null_value;
  Fail(key, "missing_required_parameter",
       fmt::format("Missing required parameter: '{}'.", PathOf(key)));
  return nullptr;
}

std::optional<std::string> ObjectReader::String(std::string_view key) {
  NoteType(key, "string");
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    WrongType(key, "a string");
    return std::nullopt;
  }
  return std::string(value->get_string());
}

std::string ObjectReader::RequiredString(std::string_view key) {
  NoteType(key, "string");
  const json::value* value = Require(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    WrongType(key, "a string");
    return {};
  }
  return std::string(value->get_string());
}

std::optional<bool> ObjectReader::Bool(std::string_view key) {
  NoteType(key, "boolean");
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) {
    WrongType(key, "a boolean");
    return std::nullopt;
  }
  return value->get_bool();
}

std::optional<double> ObjectReader::Number(std::string_view key) {
  NoteType(key, "number");
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = AsNumber(*value);
  if (!number) WrongType(key, "a number");
  return number;
}

std::optional<int64_t> ObjectReader::Integer(std::string_view key, int64_t min, int64_t max) {
  NoteType(key, "integer");
  if (state_->recorder != nullptr) state_->recorder->NoteRange(path_, key, min, max);
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_int64() && value->get_int64() >= min && value->get_int64() <= max) {
    return value->get_int64();
  }
  if (value->is_int64() || value->is_uint64()) {
    Fail(key, "invalid_value",
         fmt::format("Invalid '{}': integer out of range. Expected a value in [{}, {}].",
                     PathOf(key), min, max));
  } else {
    WrongType(key, "an integer");
  }
  return std::nullopt;
}

const json::array* ObjectReader::Array(std::string_view key) {
  NoteType(key, "array");
  const json::value* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    WrongType(key, "an array");
    return nullptr;
  }
  return &value->get_array();
}

std::optional<ObjectReader> ObjectReader::Object(std::string_view key) {
  static const json::value kEmpty = json::object();
  NoteType(key, "object");
  const json::value* value = Find(key);
  if (value == nullptr && state_->recorder != nullptr) value = &kEmpty;
  if (value == nullptr) return std::nullopt;
  ObjectReader reader(state_, *value, PathOf(key));
  if (!reader.valid()) return std::nullopt;
  return reader;
}

std::optional<size_t> ObjectReader::Match(std::string_view key, const json::value& value,
                                          const std::vector<std::string_view>& names) {
  if (!value.is_string()) {
    WrongType(key, "a string");
    return std::nullopt;
  }
  const std::string_view text(value.get_string().data(), value.get_string().size());
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  std::string known;
  for (std::string_view name : names) {
    if (!known.empty()) known += ", ";
    known.append("'").append(name).append("'");
  }
  Fail(key, "invalid_value",
       fmt::format("Invalid value for '{}': '{}'. Expected one of {}.", PathOf(key), text, known));
  return std::nullopt;
}

std::optional<size_t> ObjectReader::OneOf(std::string_view key,
                                          const std::vector<std::string_view>& names) {
  NoteNames(key, names);
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return Match(key, *value, names);
}

size_t ObjectReader::RequiredOneOf(std::string_view key,
                                   const std::vector<std::string_view>& names) {
  NoteNames(key, names);
  const json::value* value = Require(key);
  if (value == nullptr) return 0;
  return Match(key, *value, names).value_or(0);
}

void ObjectReader::NoteType(std::string_view key, std::string_view type) {
  if (object_ != nullptr && state_->recorder != nullptr) {
    state_->recorder->NoteType(path_, key, type);
  }
}

void ObjectReader::NoteNames(std::string_view key, const std::vector<std::string_view>& names) {
  NoteType(key, "string");
  if (object_ != nullptr && state_->recorder != nullptr) {
    state_->recorder->NoteNames(path_, key, names);
  }
}

void ObjectReader::WrongType(std::string_view key, std::string_view expected) {
  const json::value* value =
      object_ == nullptr ? nullptr : object_->if_contains({key.data(), key.size()});
  Fail(key, "invalid_type",
       fmt::format("Invalid type for '{}': expected {}, but got {}.", PathOf(key), expected,
                   value == nullptr ? "nothing" : JsonTypeName(*value)));
}

void ObjectReader::Fail(std::string_view key, std::string code, std::string message) {
  state_->Fail(PathOf(key), std::move(code), std::move(message));
}

std::vector<std::string> ObjectReader::UnreadKeys() const {
  std::vector<std::string> unread;
  if (object_ == nullptr) return unread;
  for (const auto& member : *object_) {
    const std::string_view key(member.key().data(), member.key().size());
    if (std::find(read_keys_.begin(), read_keys_.end(), key) == read_keys_.end()) {
      unread.emplace_back(key);
    }
  }
  return unread;
}

}  // namespace deepinfer
