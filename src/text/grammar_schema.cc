#include "text/grammar_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>

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
    // The type of given values says nothing new.
    const bool values = *alone == "const" || *alone == "enum";
    for (const std::string_view key : kAssertions) {
      if (key != *alone && present(key) && !(values && key == "type")) keywords.push_back(key);
    }
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

void CollectUnenforced(const json::value& schema, const std::string& path,
                       std::vector<std::string>* found) {
  if (!schema.is_object()) return;
  for (const std::string_view key : PassedOver(schema.get_object())) {
    found->push_back(std::string(key) + " at '" + path + "'");
  }
  VisitSubschemas(schema, [&](const std::string& pointer, const json::value& child) {
    CollectUnenforced(child, path + pointer, found);
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

void OpenBareContainers(json::value* schema) {
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
  VisitSubschemas(*schema, [](const std::string&, json::value& child) {
    OpenBareContainers(&child);
    return false;
  });
}

std::vector<std::string> FindUnenforced(const json::value& schema) {
  std::vector<std::string> found;
  CollectUnenforced(schema, "", &found);
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
