#include "text/grammar_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "text/schema_walk.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

constexpr size_t kMaxDepth = 128;

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
// Passed over where neither a type nor members or items are named.
constexpr std::string_view kTypedAssertions[] = {
    "format",           "pattern",       "minLength",        "maxLength",        "multipleOf",
    "minimum",          "maximum",       "exclusiveMinimum", "minItems",         "maxItems",
    "exclusiveMaximum", "maxProperties", "propertyNames",    "patternProperties"};
constexpr std::string_view kDefinitionKeywords[] = {"$defs", "definitions"};

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

bool HasFalseMember(const json::object& schema, std::string_view key) {
  const json::value* members = schema.if_contains(key);
  return members != nullptr && members->is_object() &&
         std::any_of(members->get_object().begin(), members->get_object().end(),
                     [](const auto& member) { return IsFalse(&member.value()); });
}

// Assertions about objects that hold only in part.
void AddPartlyTaken(const json::object& schema, std::vector<std::string_view>* keywords) {
  const json::value* least = schema.if_contains("minProperties");
  // Free names may repeat.
  if (least != nullptr && *least != json::value(0) && HasFreeNames(schema)) {
    keywords->push_back("minProperties");
  }
  for (const std::string_view key : {"properties", "patternProperties"}) {
    // Beside others that may be there.
    if (HasFalseMember(schema, key)) keywords->push_back(key);
  }
  const bool required = schema.contains("required");
  if (schema.contains("patternProperties") && required) keywords->push_back("required");
  if (schema.contains("propertyNames") && required) keywords->push_back("propertyNames");
  if (!schema.contains("properties")) return;
  for (const std::string_view key : {"propertyNames", "patternProperties"}) {
    if (schema.contains(key)) keywords->push_back(key);
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
  const std::vector<std::string_view> lost = LostLimits(schema);
  keywords.insert(keywords.end(), lost.begin(), lost.end());
  if (!schema.contains("type")) {
    // Then it is an object or an array.
    if (HasAny(schema, {"properties", "additionalProperties", "unevaluatedProperties", "items",
                        "prefixItems", "unevaluatedItems"}) ||
        (schema.contains("required") && !schema.contains("patternProperties"))) {
      return keywords;
    }
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

std::vector<std::string> PrepareForCompiler(json::value* schema, StringForm form) {
  NormalizeSchema(schema);
  std::vector<std::string> unenforced = FindUnenforced(*schema, form);
  AdaptToCompiler(schema, form);
  return unenforced;
}

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
