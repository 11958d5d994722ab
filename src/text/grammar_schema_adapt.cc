#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "text/grammar_schema.h"
#include "text/schema_walk.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

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

// Limits that no number the compiler writes keeps.
void DropLostLimits(json::object* schema) {
  for (const std::string_view key : LostLimits(*schema)) schema->erase(key);
}

void DropLostMembers(json::object* schema) {
  for (const std::string_view key : {"properties", "patternProperties"}) {
    json::value* members = schema->if_contains(key);
    if (members == nullptr || !members->is_object()) continue;
    json::object kept;
    for (auto& member : members->get_object()) {
      if (member.value() == json::value(false) && !IsRequired(*schema, member.key())) continue;
      kept.emplace(member.key(), std::move(member.value()));
    }
    *members = std::move(kept);
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

void AdaptAt(StringPlace place, json::value* schema) {
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
  // They would count as a number of items.
  for (const std::string_view key : {"contains", "minContains", "maxContains"}) object.erase(key);
  DropLostMembers(&object);
  NameRequired(&object);
  DropLostLimits(&object);
  LimitIntegers(&object);
  RewritePatterns(place, &object);
  VisitSubschemas(*schema, [&](const std::string& pointer, json::value& child) {
    AdaptAt(PlaceOfChild(place, pointer), &child);
    return false;
  });
}

}  // namespace

void AdaptToCompiler(json::value* schema, StringForm form) { AdaptAt(RootPlace(form), schema); }

}  // namespace deepinfer
