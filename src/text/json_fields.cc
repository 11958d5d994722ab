#include "text/json_fields.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace deepinfer::json_fields {

namespace json = boost::json;

std::string Quote(std::string_view text) {
  constexpr size_t kMaxQuotedBytes = 80;
  if (text.size() <= kMaxQuotedBytes) return fmt::format("\"{}\"", text);
  size_t end = kMaxQuotedBytes;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("\"{}...\"", text.substr(0, end));
}

std::string Quote(const json::value& value) {
  switch (value.kind()) {
    case json::kind::string:
      return Quote(std::string_view(value.get_string()));
    case json::kind::object:
      return "an object";
    case json::kind::array:
      return "an array";
    default:
      return json::serialize(value);
  }
}

Result<const json::value*> GetField(const json::object& object, std::string_view key,
                                    std::string_view where) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return DataCorruption(fmt::format("{} lacks \"{}\"", where, key));
  return value;
}

Result<const json::object*> GetObject(const json::object& object, std::string_view key,
                                      std::string_view where) {
  DI_ASSIGN_OR_RETURN(const json::value* value, GetField(object, key, where));
  if (!value->is_object()) {
    return DataCorruption(fmt::format("\"{}\" of {} is not an object", key, where));
  }
  return &value->get_object();
}

Result<const json::array*> GetArray(const json::object& object, std::string_view key,
                                    std::string_view where) {
  DI_ASSIGN_OR_RETURN(const json::value* value, GetField(object, key, where));
  if (!value->is_array()) {
    return DataCorruption(fmt::format("\"{}\" of {} is not an array", key, where));
  }
  return &value->get_array();
}

Result<std::string_view> GetString(const json::object& object, std::string_view key,
                                   std::string_view where) {
  DI_ASSIGN_OR_RETURN(const json::value* value, GetField(object, key, where));
  if (!value->is_string()) {
    return DataCorruption(fmt::format("\"{}\" of {} is not a string", key, where));
  }
  return std::string_view(value->get_string());
}

Result<bool> GetBool(const json::object& object, std::string_view key, bool absent,
                     std::string_view where) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) {
    return DataCorruption(fmt::format("\"{}\" of {} is not true or false", key, where));
  }
  return value->get_bool();
}

}  // namespace deepinfer::json_fields
