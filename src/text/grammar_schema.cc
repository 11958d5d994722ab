#include "text/grammar_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>

#include "text/json_pattern.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

constexpr size_t kMaxDepth = 128;

constexpr std::string_view kSchemaKeywords[] = {"items",
                                                "additionalProperties",
                                                "unevaluatedProperties",
                                                "unevaluatedItems",
                                                "propertyNames",
                                                "contains",
                                                "not",
                                                "if",
                                                "then",
                                                "else"};
constexpr std::string_view kSchemaArrayKeywords[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::string_view kSchemaMapKeywords[] = {"properties", "patternProperties", "$defs",
                                                   "definitions", "dependentSchemas"};
// Never looked at.
constexpr std::string_view kUnknownKeywords[] = {"not",
                                                 "if",
                                                 "then",
                                                 "else",
                                                 "dependentRequired",
                                                 "dependentSchemas",
                                                 "dependencies",
                                                 "$dynamicRef",
                                                 "uniqueItems",
                                                 "contains",
                                                 "minContains",
                                                 "maxContains"};
// The first of these that a schema has is all that counts.
constexpr std::string_view kExclusiveKeywords[] = {"$ref",  "const", "enum",
                                                   "anyOf", "oneOf", "allOf"};
constexpr std::string_view kAssertions[] = {
    "const",         "enum",          "anyOf",
    "oneOf",         "allOf",         "type",
    "properties",    "required",      "additionalProperties",
    "minProperties", "maxProperties", "patternProperties",
    "propertyNames", "items",         "prefixItems",
    "minItems",      "maxItems",      "minimum",
    "maximum",       "pattern",       "exclusiveMinimum",
    "format",        "minLength",     "exclusiveMaximum",
    "maxLength",     "multipleOf"};
constexpr std::string_view kKnownFormats[] = {"email",         "date",
                                              "time",          "date-time",
                                              "duration",      "ipv4",
                                              "ipv6",          "hostname",
                                              "uuid",          "uri",
                                              "uri-reference", "uri-template",
                                              "json-pointer",  "relative-json-pointer"};
// Of a string, the first that it has is all that counts; the lengths go together.
constexpr std::string_view kStringKeywords[] = {"format", "pattern", "minLength", "maxLength"};
// Passed over where no type is named.
constexpr std::string_view kTypedAssertions[] = {"format", "pattern", "minLength", "maxLength",
                                                 "multipleOf"};
constexpr std::string_view kDefinitionKeywords[] = {"$defs", "definitions"};

std::string PointerToken(std::string_view key) {
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

bool NamesType(const json::object& schema, std::string_view type) {
  const json::value* types = schema.if_contains("type");
  if (types == nullptr) return false;
  if (types->is_string()) return types->get_string() == type;
  return types->is_array() && std::any_of(types->get_array().begin(), types->get_array().end(),
                                          [&](const json::value& item) {
                                            return item.is_string() && item.get_string() == type;
                                          });
}

bool HasAny(const json::object& schema, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return schema.contains(key); });
}

bool IsFalse(const json::value* value) { return value != nullptr && *value == json::value(false); }

// Keywords about members whose names no other keyword gives.
bool HasFreeNames(const json::object& schema) {
  for (const std::string_view key : {"additionalProperties", "unevaluatedProperties"}) {
    if (schema.contains(key) && !IsFalse(schema.if_contains(key))) return true;
  }
  return HasAny(schema, {"patternProperties", "propertyNames"}) || !schema.contains("properties");
}

// A number that the compiler rounds.
bool IsBeyondRange(const json::value& value) {
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (value.is_uint64()) return value.get_uint64() > uint64_t{INT64_MAX};
  return value.is_double() && std::abs(value.get_double()) >= kExactIntegers;
}

bool HoldsNumberBeyondRange(const json::value& values) {
  if (!values.is_array()) return IsBeyondRange(values);
  return std::any_of(values.get_array().begin(), values.get_array().end(), IsBeyondRange);
}

// Assertions about objects that hold only in part.
void AddPartlyTaken(const json::object& schema, std::vector<std::string_view>* keywords) {
  const json::value* least = schema.if_contains("minProperties");
  // Free names may repeat.
  if (least != nullptr && *least != json::value(0) && HasFreeNames(schema)) {
    keywords->push_back("minProperties");
  }
  if (!schema.contains("properties")) return;
  for (const std::string_view key : {"propertyNames", "patternProperties"}) {
    if (schema.contains(key)) keywords->push_back(key);
  }
  if (schema.contains("patternProperties") && schema.contains("required")) {
    keywords->push_back("required");
  }
}

// Keywords of one schema object that the compiler passes over.
std::vector<std::string_view> PassedOver(const json::object& schema) {
  std::vector<std::string_view> keywords;
  const auto present = [&](std::string_view key) { return schema.contains(key); };
  std::copy_if(std::begin(kUnknownKeywords), std::end(kUnknownKeywords),
               std::back_inserter(keywords), present);
  std::erase_if(keywords, [&](std::string_view key) {
    return key == "uniqueItems" && *schema.if_contains(key) == json::value(false);
  });
  const auto* alone =
      std::find_if(std::begin(kExclusiveKeywords), std::end(kExclusiveKeywords), present);
  if (alone != std::end(kExclusiveKeywords)) {
    // Given values of other types are taken out.
    const bool values = *alone == "const" || *alone == "enum";
    if (values && HoldsNumberBeyondRange(*schema.if_contains(*alone))) keywords.push_back(*alone);
    for (const std::string_view key : kAssertions) {
      if (key != *alone && present(key) && !(values && key == "type")) keywords.push_back(key);
    }
    return keywords;
  }
  AddPartlyTaken(schema, &keywords);
  if (!schema.contains("type")) {
    std::copy_if(std::begin(kTypedAssertions), std::end(kTypedAssertions),
                 std::back_inserter(keywords), present);
    return keywords;
  }
  const json::value* format = schema.if_contains("format");
  const bool known_format =
      format != nullptr && format->is_string() &&
      std::find(std::begin(kKnownFormats), std::end(kKnownFormats),
                std::string_view(format->get_string())) != std::end(kKnownFormats);
  if (format != nullptr && !known_format) keywords.push_back("format");
  bool taken = false;
  for (const std::string_view key : kStringKeywords) {
    if (!present(key) || (key == "format" && !known_format)) continue;
    if (taken && !(key == "maxLength" && !present("pattern") && !known_format)) {
      keywords.push_back(key);
    }
    taken = true;
  }
  return keywords;
}

// Where the strings that a schema describes stand.
enum class StringPlace : unsigned char { kJson, kParameters, kParameter, kEither };

// `pointer` leads from a schema to one of its subschemas.
StringPlace PlaceOfChild(StringPlace place, std::string_view pointer) {
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

StringPlace RootPlace(StringForm form) {
  return form == StringForm::kJson ? StringPlace::kJson : StringPlace::kParameters;
}

std::optional<JsonPattern> PatternOf(std::string_view pattern, StringPlace place) {
  if (place == StringPlace::kParameter) return JsonPattern{std::string(pattern), false};
  return PatternInsideJsonString(pattern);
}

bool IsPatternKept(std::string_view pattern, StringPlace place) {
  const auto kept = PatternOf(pattern, place);
  return kept && (place == StringPlace::kJson || !kept->has_escapes);
}

// Patterns of values and of keys that do not say in JSON what the schema asks for.
void CollectLostPatterns(const json::object& schema, StringPlace place, const std::string& path,
                         std::vector<std::string>* found) {
  const json::value* pattern = schema.if_contains("pattern");
  if (pattern != nullptr && pattern->is_string() && !IsPatternKept(pattern->get_string(), place)) {
    found->push_back("pattern at '" + path + "'");
  }
  const json::value* keys = schema.if_contains("patternProperties");
  if (keys == nullptr || !keys->is_object()) return;
  const StringPlace key_place = place == StringPlace::kParameter ? StringPlace::kJson : place;
  for (const auto& member : keys->get_object()) {
    if (IsPatternKept(member.key(), key_place)) continue;
    found->push_back("patternProperties at '" + path + "'");
  }
}

void CollectUnenforced(const json::value& schema, StringPlace place, const std::string& path,
                       std::vector<std::string>* found) {
  if (!schema.is_object()) return;
  for (const std::string_view key : PassedOver(schema.get_object())) {
    found->push_back(std::string(key) + " at '" + path + "'");
  }
  CollectLostPatterns(schema.get_object(), place, path, found);
  VisitSubschemas(schema, [&](const std::string& pointer, const json::value& child) {
    CollectUnenforced(child, PlaceOfChild(place, pointer), path + pointer, found);
    return false;
  });
}

// A pattern that cannot be written goes.
void RewritePatterns(StringPlace place, json::object* schema) {
  json::value* pattern = schema->if_contains("pattern");
  if (pattern != nullptr && pattern->is_string()) {
    const auto rewritten = PatternOf(pattern->get_string(), place);
    if (rewritten) {
      *pattern = rewritten->expression;
    } else {
      schema->erase("pattern");
    }
  }
  json::value* keys = schema->if_contains("patternProperties");
  if (keys == nullptr || !keys->is_object()) return;
  const StringPlace key_place = place == StringPlace::kParameter ? StringPlace::kJson : place;
  json::object rewritten_keys;
  for (auto& member : keys->get_object()) {
    const auto rewritten = PatternOf(member.key(), key_place);
    if (rewritten) rewritten_keys.emplace(rewritten->expression, std::move(member.value()));
  }
  *keys = std::move(rewritten_keys);
}

// Which member "type" of a schema a value has.
bool IsOfType(const json::value& value, std::string_view type) {
  const bool whole = value.is_int64() || value.is_uint64() ||
                     (value.is_double() && std::trunc(value.get_double()) == value.get_double());
  if (type == "integer") return whole;
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

// Takes the given values of other types than the named ones out; the compiler refuses none at all.
void DropValuesOfOtherTypes(json::object* schema) {
  const json::value* types = schema->if_contains("type");
  if (types == nullptr) return;
  const auto fits = [&](const json::value& value) {
    if (types->is_string()) return IsOfType(value, types->get_string());
    return !types->is_array() ||
           std::any_of(types->get_array().begin(), types->get_array().end(),
                       [&](const json::value& type) {
                         return type.is_string() && IsOfType(value, type.get_string());
                       });
  };
  json::value* values = schema->if_contains("enum");
  if (values != nullptr && values->is_array()) {
    json::array kept;
    std::copy_if(values->get_array().begin(), values->get_array().end(), std::back_inserter(kept),
                 fits);
    *values = std::move(kept);
  }
  const json::value* value = schema->if_contains("const");
  if (value != nullptr && !fits(*value)) {
    schema->erase("const");
    (*schema)["enum"] = json::array();
  }
}

void LimitIntegers(json::object* schema) {
  if (!NamesType(*schema, "integer")) return;
  const bool has_least = HasAny(*schema, {"minimum", "exclusiveMinimum"});
  const bool has_most = HasAny(*schema, {"maximum", "exclusiveMaximum"});
  if (has_least && !has_most) (*schema)["maximum"] = INT64_MAX;
  if (has_most && !has_least) (*schema)["minimum"] = INT64_MIN;
}

// Beside patterns of names the schema of a required one is not known.
void NameRequired(json::object* schema) {
  const json::value* required = schema->if_contains("required");
  if (required == nullptr || !required->is_array() || schema->contains("patternProperties")) return;
  json::value other = json::object();
  for (const std::string_view key : {"unevaluatedProperties", "additionalProperties"}) {
    const json::value* given = schema->if_contains(key);
    if (given != nullptr && *given != json::value(true)) other = *given;
  }
  json::value* named = schema->if_contains("properties");
  json::object properties =
      named != nullptr && named->is_object() ? named->get_object() : json::object();
  const size_t num_named = properties.size();
  for (const json::value& name : required->get_array()) {
    if (name.is_string()) properties.emplace(name.get_string(), other);
  }
  if (properties.size() > num_named) (*schema)["properties"] = std::move(properties);
}

void OpenAt(StringPlace place, json::value* schema) {
  if (!schema->is_object()) return;
  json::object& object = schema->get_object();
  if (NamesType(object, "object") &&
      !HasAny(object, {"properties", "patternProperties", "additionalProperties",
                       "unevaluatedProperties"})) {
    object["additionalProperties"] = true;
  }
  if (NamesType(object, "array") && !HasAny(object, {"items", "prefixItems", "unevaluatedItems"})) {
    object["items"] = json::object();
  }
  NameRequired(&object);
  DropValuesOfOtherTypes(&object);
  LimitIntegers(&object);
  RewritePatterns(place, &object);
  VisitSubschemas(*schema, [&](const std::string& pointer, json::value& child) {
    OpenAt(PlaceOfChild(place, pointer), &child);
    return false;
  });
}

// The subschema as a schema of its own, so that its references still lead somewhere.
json::value WithDefinitionsOf(const json::value& root, const json::value& subschema) {
  json::value alone = subschema;
  if (!alone.is_object() || !root.is_object()) return alone;
  for (const std::string_view key : kDefinitionKeywords) {
    const json::value* definitions = root.get_object().if_contains(key);
    if (definitions != nullptr && !alone.get_object().contains(key)) {
      alone.get_object()[key] = *definitions;
    }
  }
  return alone;
}

}  // namespace

Result<json::value> ParseGrammarJson(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::value value = json::parse(text, error, {}, options);
  if (error) {
    return InvalidRequest(std::string(what) + " is not valid JSON: " + error.message());
  }
  return value;
}

void OpenBareContainers(json::value* schema, StringForm form) { OpenAt(RootPlace(form), schema); }

std::vector<std::string> FindUnenforced(const json::value& schema, StringForm form) {
  std::vector<std::string> found;
  CollectUnenforced(schema, RootPlace(form), "", &found);
  return found;
}

std::string FindFaultPath(const json::value& schema,
                          const std::function<bool(const json::value&)>& is_valid) {
  std::string path;
  const json::value* faulty = &schema;
  while (VisitSubschemas(*faulty, [&](const std::string& pointer, const json::value& child) {
    if (is_valid(WithDefinitionsOf(schema, child))) return false;
    path += pointer;
    faulty = &child;
    return true;
  })) {
  }
  return path;
}

}  // namespace deepinfer
