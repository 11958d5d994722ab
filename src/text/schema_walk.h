// Walking through a JSON Schema: its subschemas with their pointers, and where the strings that it
// describes stand. Internal to the grammar code.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_schema.h"
#include "text/json_pattern.h"

namespace deepinfer {

inline constexpr std::string_view kSchemaKeywords[] = {"items",
                                                       "additionalProperties",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "propertyNames",
                                                       "contains",
                                                       "not",
                                                       "if",
                                                       "then",
                                                       "else"};
inline constexpr std::string_view kSchemaArrayKeywords[] = {"anyOf", "oneOf", "allOf",
                                                            "prefixItems"};
inline constexpr std::string_view kSchemaMapKeywords[] = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas"};

// A step of a JSON pointer.
inline std::string PointerToken(std::string_view key) {
  std::string out = "/";
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

// Calls visit(pointer, subschema) for each direct subschema; a true result ends the walk.
template <typename Value, typename Visit>
bool VisitSubschemas(Value& schema, const Visit& visit) {
  if (!schema.is_object()) return false;
  auto& object = schema.get_object();
  for (const std::string_view key : kSchemaKeywords) {
    auto* child = object.if_contains(key);
    if (child != nullptr && child->is_object() && visit(PointerToken(key), *child)) return true;
  }
  for (const std::string_view key : kSchemaArrayKeywords) {
    auto* children = object.if_contains(key);
    if (children == nullptr || !children->is_array()) continue;
    size_t index = 0;
    for (auto& child : children->get_array()) {
      if (visit(PointerToken(key) + "/" + std::to_string(index++), child)) return true;
    }
  }
  for (const std::string_view key : kSchemaMapKeywords) {
    auto* children = object.if_contains(key);
    if (children == nullptr || !children->is_object()) continue;
    for (auto& child : children->get_object()) {
      if (visit(PointerToken(key) + PointerToken(child.key()), child.value())) return true;
    }
  }
  return false;
}

// Whether `takes` one of the types that the schema names; false where it names none.
template <typename Takes>
bool AnyNamedType(const boost::json::object& schema, const Takes& takes) {
  const boost::json::value* types = schema.if_contains("type");
  if (types == nullptr) return false;
  if (types->is_string()) return takes(std::string_view(types->get_string()));
  return types->is_array() && std::any_of(types->get_array().begin(), types->get_array().end(),
                                          [&](const boost::json::value& type) {
                                            return type.is_string() &&
                                                   takes(std::string_view(type.get_string()));
                                          });
}

inline bool NamesType(const boost::json::object& schema, std::string_view type) {
  return AnyNamedType(schema, [&](std::string_view named) { return named == type; });
}

inline bool HasAny(const boost::json::object& schema,
                   std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return schema.contains(key); });
}

inline bool IsRequired(const boost::json::object& schema, std::string_view name) {
  const boost::json::value* required = schema.if_contains("required");
  return required != nullptr && required->is_array() &&
         std::any_of(required->get_array().begin(), required->get_array().end(),
                     [&](const boost::json::value& other) {
                       return other.is_string() && std::string_view(other.get_string()) == name;
                     });
}

// Whether the schema says that other properties than the named ones may be there.
inline bool IsOpenObject(const boost::json::object& schema) {
  for (const std::string_view key : {"additionalProperties", "unevaluatedProperties"}) {
    const boost::json::value* others = schema.if_contains(key);
    if (others != nullptr) return *others != boost::json::value(false);
  }
  return false;
}

// Limits of numbers that the compiler cannot keep: beyond 64 bits for integers; for others integers
// that are no doubles, and limits closer together than its six digits behind the point.
std::vector<std::string_view> LostLimits(const boost::json::object& schema);

// Where the strings that a schema describes stand.
enum class StringPlace : unsigned char { kJson, kParameters, kParameter, kEither };

// `pointer` leads from a schema to one of its subschemas.
inline StringPlace PlaceOfChild(StringPlace place, std::string_view pointer) {
  const auto below = [&](std::initializer_list<std::string_view> keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](std::string_view key) { return pointer.starts_with(key); });
  };
  if (place == StringPlace::kParameters) {
    if (below({"/properties/", "/patternProperties/", "/additionalProperties"})) {
      return StringPlace::kParameter;
    }
    if (below({"/anyOf/", "/oneOf/", "/allOf/"})) return StringPlace::kParameters;
    // A definition may be referred to from either.
    if (below({"/$defs/", "/definitions/"})) return StringPlace::kEither;
  }
  if (place == StringPlace::kParameter && below({"/anyOf/", "/oneOf/", "/allOf/"})) return place;
  return place == StringPlace::kEither ? place : StringPlace::kJson;
}

inline StringPlace RootPlace(StringForm form) {
  return form == StringForm::kJson ? StringPlace::kJson : StringPlace::kParameters;
}

inline std::optional<JsonPattern> PatternOf(std::string_view pattern, StringPlace place) {
  if (!IsKnownToCompiler(pattern)) return std::nullopt;
  if (place == StringPlace::kParameter) return JsonPattern{std::string(pattern), false};
  return PatternInsideJsonString(pattern);
}

}  // namespace deepinfer
