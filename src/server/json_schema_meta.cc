#include "server/json_schema_meta.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <unordered_set>

#include "base/utf8.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Fault = std::optional<std::string>;
using Draft = SchemaDraft;
using Keyword = SchemaKeyword;
using Rule = SchemaRule;
using Vocabulary = SchemaVocabulary;

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

constexpr int kNumVocabularies = 8;

constexpr Keyword kKeywords[] = {
    {"$schema", Vocabulary::kCore, Rule::kString},
    {"$ref", Vocabulary::kCore, Rule::kString, Draft::k6},
    {"id", Vocabulary::kCore, Rule::kString, Draft::k4, Draft::k4},
    {"$id", Vocabulary::kCore, Rule::kString, Draft::k6, Draft::k7},
    {"$id", Vocabulary::kCore, Rule::kIdentifier, Draft::k2019},
    {"$anchor", Vocabulary::kCore, Rule::kAnchor, Draft::k2019},
    {"$dynamicRef", Vocabulary::kCore, Rule::kString, Draft::k2020},
    {"$dynamicAnchor", Vocabulary::kCore, Rule::kAnchor, Draft::k2020},
    {"$vocabulary", Vocabulary::kCore, Rule::kBoolMap, Draft::k2019},
    {"$comment", Vocabulary::kCore, Rule::kString, Draft::k7},
    {"$defs", Vocabulary::kCore, Rule::kSchemaMap, Draft::k2019},
    {"prefixItems", Vocabulary::kApplicator, Rule::kSchemaArray, Draft::k2020},
    {"items", Vocabulary::kApplicator, Rule::kSchemaOrArray, Draft::k4, Draft::k2019},
    {"items", Vocabulary::kApplicator, Rule::kSchema, Draft::k2020},
    {"additionalItems", Vocabulary::kApplicator, Rule::kBoolOrSchema, Draft::k4, Draft::k4},
    {"additionalItems", Vocabulary::kApplicator, Rule::kSchema, Draft::k6, Draft::k2019},
    {"contains", Vocabulary::kApplicator, Rule::kSchema, Draft::k6},
    {"additionalProperties", Vocabulary::kApplicator, Rule::kSchema},
    {"properties", Vocabulary::kApplicator, Rule::kSchemaMap},
    {"patternProperties", Vocabulary::kApplicator, Rule::kSchemaMap},
    {"dependentSchemas", Vocabulary::kApplicator, Rule::kSchemaMap, Draft::k2019},
    {"propertyNames", Vocabulary::kApplicator, Rule::kSchema, Draft::k6},
    {"if", Vocabulary::kApplicator, Rule::kSchema, Draft::k7},
    {"then", Vocabulary::kApplicator, Rule::kSchema, Draft::k7},
    {"else", Vocabulary::kApplicator, Rule::kSchema, Draft::k7},
    {"allOf", Vocabulary::kApplicator, Rule::kSchemaArray},
    {"anyOf", Vocabulary::kApplicator, Rule::kSchemaArray},
    {"oneOf", Vocabulary::kApplicator, Rule::kSchemaArray},
    {"not", Vocabulary::kApplicator, Rule::kSchema},
    {"unevaluatedItems", Vocabulary::kUnevaluated, Rule::kSchema, Draft::k2019},
    {"unevaluatedProperties", Vocabulary::kUnevaluated, Rule::kSchema, Draft::k2019},
    {"type", Vocabulary::kValidation, Rule::kType},
    {"enum", Vocabulary::kValidation, Rule::kArray},
    {"multipleOf", Vocabulary::kValidation, Rule::kPositive},
    {"maximum", Vocabulary::kValidation, Rule::kNumber},
    {"exclusiveMaximum", Vocabulary::kValidation, Rule::kBool, Draft::k4, Draft::k4},
    {"exclusiveMaximum", Vocabulary::kValidation, Rule::kNumber, Draft::k6},
    {"minimum", Vocabulary::kValidation, Rule::kNumber},
    {"exclusiveMinimum", Vocabulary::kValidation, Rule::kBool, Draft::k4, Draft::k4},
    {"exclusiveMinimum", Vocabulary::kValidation, Rule::kNumber, Draft::k6},
    {"maxLength", Vocabulary::kValidation, Rule::kCount},
    {"minLength", Vocabulary::kValidation, Rule::kCount},
    {"pattern", Vocabulary::kValidation, Rule::kString},
    {"maxItems", Vocabulary::kValidation, Rule::kCount},
    {"minItems", Vocabulary::kValidation, Rule::kCount},
    {"uniqueItems", Vocabulary::kValidation, Rule::kBool},
    {"maxContains", Vocabulary::kValidation, Rule::kCount, Draft::k2019},
    {"minContains", Vocabulary::kValidation, Rule::kCount, Draft::k2019},
    {"maxProperties", Vocabulary::kValidation, Rule::kCount},
    {"minProperties", Vocabulary::kValidation, Rule::kCount},
    {"required", Vocabulary::kValidation, Rule::kStrings},
    {"dependentRequired", Vocabulary::kValidation, Rule::kStringsMap, Draft::k2019},
    {"title", Vocabulary::kMetaData, Rule::kString},
    {"description", Vocabulary::kMetaData, Rule::kString},
    {"deprecated", Vocabulary::kMetaData, Rule::kBool, Draft::k2019},
    {"readOnly", Vocabulary::kMetaData, Rule::kBool, Draft::k7},
    {"writeOnly", Vocabulary::kMetaData, Rule::kBool, Draft::k7},
    {"examples", Vocabulary::kMetaData, Rule::kArray, Draft::k6},
    {"format", Vocabulary::kFormat, Rule::kString},
    {"contentEncoding", Vocabulary::kContent, Rule::kString, Draft::k6},
    {"contentMediaType", Vocabulary::kContent, Rule::kString, Draft::k6},
    {"contentSchema", Vocabulary::kContent, Rule::kSchema, Draft::k2019},
    {"definitions", Vocabulary::kLegacy, Rule::kSchemaMap},
    {"dependencies", Vocabulary::kLegacy, Rule::kSchemaOrStringsMap},
    {"$recursiveRef", Vocabulary::kLegacy, Rule::kString, Draft::k2019},
    {"$recursiveAnchor", Vocabulary::kLegacy, Rule::kBool, Draft::k2019, Draft::k2019},
    {"$recursiveAnchor", Vocabulary::kLegacy, Rule::kAnchor, Draft::k2020},
};

constexpr std::array<std::string_view, 7> kSimpleTypes = {"array",  "boolean", "integer", "null",
                                                          "number", "object",  "string"};

struct MetaSchema {
  std::string_view path;
  Draft draft;
};
constexpr MetaSchema kMetaSchemas[] = {
    {"json-schema.org/draft-04/schema", Draft::k4},
    {"json-schema.org/draft-06/schema", Draft::k6},
    {"json-schema.org/draft-07/schema", Draft::k7},
    {"json-schema.org/draft/2019-09/schema", Draft::k2019},
    {"json-schema.org/draft/2020-12/schema", Draft::k2020},
    {"json-schema.org/schema", Draft::k2020},
};

std::string_view WithoutScheme(std::string_view uri) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (uri.starts_with(scheme)) return uri.substr(scheme.size());
  }
  return {};
}

std::string NotOfType(const json::value& value, std::string_view type) {
  return fmt::format("{} is not of type \"{}\"", ShownValue(value), type);
}

std::string NoVariantFits(const json::value& value) {
  return fmt::format("{} is not valid under any of the schemas listed in the 'anyOf' keyword",
                     ShownValue(value));
}

bool IsSimpleType(const json::value& value) {
  return value.is_string() && std::find(kSimpleTypes.begin(), kSimpleTypes.end(),
                                        View(value.get_string())) != kSimpleTypes.end();
}

bool HasRepeatedString(const json::array& strings) {
  std::unordered_set<std::string_view> seen;
  for (const json::value& element : strings) {
    if (element.is_string() && !seen.insert(View(element.get_string())).second) return true;
  }
  return false;
}

// Checks a schema against the rules of its draft.
class MetaChecker {
 public:
  explicit MetaChecker(Draft draft) : draft_(draft) {}

  Fault Schema(const json::value& schema) const {
    if (!schema.is_object()) {
      if (draft_ == Draft::k4) return NotOfType(schema, "object");
      return schema.is_bool() ? std::nullopt : Fault(NotOfSchemaType(schema));
    }
    const int num_passes = draft_ >= Draft::k2019 ? kNumVocabularies : 1;
    for (int pass = 0; pass < num_passes; ++pass) {
      for (const auto& member : schema.get_object()) {
        const Keyword* keyword =
            FindSchemaKeyword(draft_, {member.key().data(), member.key().size()});
        if (keyword == nullptr) continue;
        if (num_passes > 1 && keyword->vocabulary != static_cast<Vocabulary>(pass)) continue;
        if (Fault fault = Value(keyword->rule, member.value())) return fault;
      }
    }
    return std::nullopt;
  }

 private:
  Fault Value(Rule rule, const json::value& value) const {
    switch (rule) {
      case Rule::kSchema:
        // Draft 4 allows true and false here, and nowhere else.
        if (draft_ == Draft::k4 && value.is_bool()) return std::nullopt;
        return Schema(value);
      case Rule::kBoolOrSchema:
        return value.is_bool() ? std::nullopt : Schema(value);
      case Rule::kSchemaMap:
        return SchemaMap(value);
      case Rule::kSchemaArray:
        return SchemaArray(value);
      case Rule::kSchemaOrArray:
        if (!Schema(value) || !SchemaArray(value)) return std::nullopt;
        return NoVariantFits(value);
      case Rule::kSchemaOrStringsMap:
        return SchemaOrStringsMap(value);
      case Rule::kStringsMap:
        return StringsMap(value);
      case Rule::kStrings:
        return Strings(value);
      case Rule::kType:
        return Type(value);
      case Rule::kBoolMap:
        return BoolMap(value);
      default:
        return Scalar(rule, value);
    }
  }

  Fault SchemaMap(const json::value& value) const {
    if (!value.is_object()) return NotOfType(value, "object");
    for (const auto& member : value.get_object()) {
      if (Fault fault = Schema(member.value())) return fault;
    }
    return std::nullopt;
  }

  Fault SchemaArray(const json::value& value) const {
    if (!value.is_array()) return NotOfType(value, "array");
    if (value.get_array().empty()) return "[] has less than 1 item";
    for (const json::value& element : value.get_array()) {
      if (Fault fault = Schema(element)) return fault;
    }
    return std::nullopt;
  }

  Fault SchemaOrStringsMap(const json::value& value) const {
    if (!value.is_object()) return NotOfType(value, "object");
    for (const auto& member : value.get_object()) {
      if (Schema(member.value()) && Strings(member.value())) return NoVariantFits(member.value());
    }
    return std::nullopt;
  }

  Fault StringsMap(const json::value& value) const {
    if (!value.is_object()) return NotOfType(value, "object");
    for (const auto& member : value.get_object()) {
      if (Fault fault = Strings(member.value())) return fault;
    }
    return std::nullopt;
  }

  Fault Strings(const json::value& value) const {
    if (!value.is_array()) return NotOfType(value, "array");
    if (draft_ == Draft::k4 && value.get_array().empty()) return "[] has less than 1 item";
    for (const json::value& element : value.get_array()) {
      if (!element.is_string()) return NotOfType(element, "string");
    }
    if (!HasRepeatedString(value.get_array())) return std::nullopt;
    return ShownValue(value) + " has non-unique elements";
  }

  static Fault Type(const json::value& value) {
    if (IsSimpleType(value)) return std::nullopt;
    const bool is_list =
        value.is_array() && !value.get_array().empty() &&
        std::all_of(value.get_array().begin(), value.get_array().end(), IsSimpleType) &&
        !HasRepeatedString(value.get_array());
    return is_list ? std::nullopt : Fault(NoVariantFits(value));
  }

  static Fault BoolMap(const json::value& value) {
    if (!value.is_object()) return NotOfType(value, "object");
    for (const auto& member : value.get_object()) {
      if (!member.value().is_bool()) return NotOfType(member.value(), "boolean");
    }
    return std::nullopt;
  }

  static Fault Text(Rule rule, const json::value& value) {
    if (!value.is_string()) return NotOfType(value, "string");
    const std::string_view text = View(value.get_string());
    if (rule == Rule::kIdentifier) {
      const size_t hash = text.find('#');
      if (hash == std::string_view::npos || hash + 1 == text.size()) return std::nullopt;
      return ShownValue(value) + " does not match \"^[^#]*#?$\"";
    }
    if (rule == Rule::kAnchor) {
      auto is_letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
      const bool fits =
          !text.empty() && (is_letter(text[0]) || text[0] == '_') &&
          std::all_of(text.begin(), text.end(), [&](char c) {
            return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
          });
      if (!fits) return ShownValue(value) + " does not match \"^[A-Za-z_][-A-Za-z0-9._]*$\"";
    }
    return std::nullopt;
  }

  static Fault Scalar(Rule rule, const json::value& value) {
    const double number = value.is_number() ? value.to_number<double>() : 0;
    switch (rule) {
      case Rule::kBool:
        return value.is_bool() ? std::nullopt : Fault(NotOfType(value, "boolean"));
      case Rule::kArray:
        return value.is_array() ? std::nullopt : Fault(NotOfType(value, "array"));
      case Rule::kNumber:
      case Rule::kPositive:
        if (!value.is_number()) return NotOfType(value, "number");
        if (rule == Rule::kNumber || number > 0) return std::nullopt;
        return ShownValue(value) + " is less than or equal to the minimum of 0";
      case Rule::kCount:
        if (!value.is_number() || std::floor(number) != number) {
          return NotOfType(value, "integer");
        }
        return number >= 0 ? std::nullopt
                           : Fault(ShownValue(value) + " is less than the minimum of 0");
      default:
        return Text(rule, value);
    }
  }

  Draft draft_;
};

}  // namespace

const SchemaKeyword* FindSchemaKeyword(SchemaDraft draft, std::string_view name) {
  for (const SchemaKeyword& keyword : kKeywords) {
    if (keyword.name == name && draft >= keyword.first && draft <= keyword.last) return &keyword;
  }
  return nullptr;
}

std::optional<SchemaDraft> SchemaDraftOf(std::string_view uri) {
  std::string_view path = WithoutScheme(uri);
  if (path.ends_with('#')) path.remove_suffix(1);
  for (const MetaSchema& known : kMetaSchemas) {
    if (known.path == path) return known.draft;
  }
  return std::nullopt;
}

std::optional<std::string> CheckMetaSchema(SchemaDraft draft, const json::value& schema) {
  return MetaChecker(draft).Schema(schema);
}

std::string ShownValue(const json::value& value) {
  constexpr size_t kMaxShownBytes = 4096;
  std::string text = CompactJson(value);
  if (text.size() > kMaxShownBytes) {
    text.resize(ValidUtf8Prefix(std::string_view(text).substr(0, kMaxShownBytes)));
    text += "...";
  }
  return text;
}

std::string NotOfSchemaType(const json::value& value) {
  return fmt::format("{} is not of types \"boolean\", \"object\"", ShownValue(value));
}

}  // namespace deepinfer
