#include "server/json_schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/utf8.h"
#include "server/regex_syntax.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Fault = std::optional<std::string>;

// A value in a message; long ones are cut.
std::string Shown(const json::value& value) {
  constexpr size_t kMaxShownBytes = 4096;
  std::string text = CompactJson(value);
  if (text.size() > kMaxShownBytes) {
    text.resize(ValidUtf8Prefix(std::string_view(text).substr(0, kMaxShownBytes)));
    text += "...";
  }
  return text;
}

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

enum class Draft : unsigned char { k4, k6, k7, k2019, k2020 };

// What the meta-schema asks of a keyword's value.
enum class Rule : unsigned char {
  kSchema,
  kSchemaMap,
  kSchemaArray,
  kSchemaOrArray,
  kSchemaOrStringsMap,
  kString,
  kIdentifier,  // $id: no fragment
  kAnchor,
  kBool,
  kBoolMap,
  kBoolOrSchema,  // draft 4
  kType,
  kArray,
  kNumber,
  kPositive,
  kCount,
  kStrings,
  kStringsMap,
};

// Since 2019-09 the meta-schema is split into vocabularies, which are checked one after another;
// older drafts check keywords in the order of the document.
enum class Vocabulary : unsigned char {
  kCore,
  kApplicator,
  kUnevaluated,
  kValidation,
  kMetaData,
  kFormat,
  kContent,
  kLegacy,
};
constexpr int kNumVocabularies = 8;

struct Keyword {
  std::string_view name;
  Vocabulary vocabulary;
  Rule rule;
  Draft first = Draft::k4;
  Draft last = Draft::k2020;
};

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
    {"contentEncoding", Vocabulary::kContent, Rule::kString, Draft::k7},
    {"contentMediaType", Vocabulary::kContent, Rule::kString, Draft::k7},
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

std::optional<Draft> DraftOf(std::string_view uri) {
  std::string_view path = WithoutScheme(uri);
  if (path.ends_with('#')) path.remove_suffix(1);
  for (const MetaSchema& known : kMetaSchemas) {
    if (known.path == path) return known.draft;
  }
  return std::nullopt;
}

std::string NotOfType(const json::value& value, std::string_view type) {
  return fmt::format("{} is not of type \"{}\"", Shown(value), type);
}

std::string NotOfSchemaType(const json::value& value) {
  return fmt::format("{} is not of types \"boolean\", \"object\"", Shown(value));
}

std::string NoVariantFits(const json::value& value) {
  return fmt::format("{} is not valid under any of the schemas listed in the 'anyOf' keyword",
                     Shown(value));
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
        const Keyword* keyword = Find({member.key().data(), member.key().size()});
        if (keyword == nullptr) continue;
        if (num_passes > 1 && keyword->vocabulary != static_cast<Vocabulary>(pass)) continue;
        if (Fault fault = Value(keyword->rule, member.value())) return fault;
      }
    }
    return std::nullopt;
  }

 private:
  const Keyword* Find(std::string_view name) const {
    for (const Keyword& keyword : kKeywords) {
      if (keyword.name == name && draft_ >= keyword.first && draft_ <= keyword.last) {
        return &keyword;
      }
    }
    return nullptr;
  }

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
    return Shown(value) + " has non-unique elements";
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
      return Shown(value) + " does not match \"^[^#]*#?$\"";
    }
    if (rule == Rule::kAnchor) {
      auto is_letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
      const bool fits =
          !text.empty() && (is_letter(text[0]) || text[0] == '_') &&
          std::all_of(text.begin(), text.end(), [&](char c) {
            return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
          });
      if (!fits) return Shown(value) + " does not match \"^[A-Za-z_][-A-Za-z0-9._]*$\"";
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
        return Shown(value) + " is less than or equal to the minimum of 0";
      case Rule::kCount:
        if (!value.is_number() || std::floor(number) != number) {
          return NotOfType(value, "integer");
        }
        return number >= 0 ? std::nullopt : Fault(Shown(value) + " is less than the minimum of 0");
      default:
        return Text(rule, value);
    }
  }

  Draft draft_;
};

// Follows what a compiler of the schema would visit: subschemas in use and what they refer to.
class ReachableChecker {
 public:
  ReachableChecker(Draft draft, const json::value& root) : draft_(draft), root_(root) {
    CollectNames(root);
  }

  Fault Run() {
    to_visit_.push_back(&root_);
    while (!to_visit_.empty()) {
      const json::value* schema = to_visit_.back();
      to_visit_.pop_back();
      if (!visited_.insert(schema).second) continue;
      if (Fault fault = Visit(*schema)) return fault;
    }
    return std::nullopt;
  }

 private:
  // Anchors and identifiers anywhere in the document.
  void CollectNames(const json::value& value) {
    if (value.is_array()) {
      for (const json::value& element : value.get_array()) CollectNames(element);
    }
    if (!value.is_object()) return;
    for (const auto& member : value.get_object()) {
      const std::string_view key(member.key().data(), member.key().size());
      if (member.value().is_string()) {
        const std::string_view text = View(member.value().get_string());
        if (key == "$anchor" || key == "$dynamicAnchor") anchors_.insert(text);
        if (key == "$id" || key == "id") ids_.push_back(text);
      }
      CollectNames(member.value());
    }
  }

  Fault Visit(const json::value& schema) {
    if (schema.is_bool()) return std::nullopt;
    if (!schema.is_object()) return NotOfSchemaType(schema);
    const json::object& object = schema.get_object();
    const json::value* reference = object.if_contains("$ref");
    if (reference != nullptr && reference->is_string()) {
      if (Fault fault = Follow(View(reference->get_string()))) return fault;
    }
    if (const json::value* pattern = object.if_contains("pattern")) {
      if (pattern->is_string() && !IsRegexSyntax(View(pattern->get_string()))) {
        return Shown(*pattern) + " is not a \"regex\"";
      }
    }
    const json::value* patterns = object.if_contains("patternProperties");
    if (patterns != nullptr && patterns->is_object()) {
      for (const auto& member : patterns->get_object()) {
        if (!IsRegexSyntax({member.key().data(), member.key().size()})) {
          return (draft_ >= Draft::k2019 ? Shown(member.value())
                                         : Shown(json::value(member.key()))) +
                 " is not a \"regex\"";
        }
      }
    }
    QueueSubschemas(object);
    return std::nullopt;
  }

  void QueueSubschemas(const json::object& object) {
    const size_t first = to_visit_.size();
    for (const auto& member : object) {
      const std::string_view key(member.key().data(), member.key().size());
      const auto* keyword =
          std::find_if(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& candidate) {
            return candidate.name == key && draft_ >= candidate.first && draft_ <= candidate.last;
          });
      if (keyword == std::end(kKeywords)) continue;
      const bool is_in_use = keyword->vocabulary == Vocabulary::kApplicator ||
                             keyword->vocabulary == Vocabulary::kUnevaluated ||
                             keyword->name == "dependencies";
      const bool needs_if = key == "then" || key == "else";
      if (!is_in_use || (needs_if && !object.contains("if"))) continue;
      QueueValue(member.value(), keyword->rule);
    }
    // Visited in the order of the document.
    std::reverse(to_visit_.begin() + static_cast<std::ptrdiff_t>(first), to_visit_.end());
  }

  void QueueValue(const json::value& value, Rule rule) {
    const bool is_map = rule == Rule::kSchemaMap || rule == Rule::kSchemaOrStringsMap;
    if (is_map && value.is_object()) {
      for (const auto& member : value.get_object()) {
        if (!member.value().is_array()) to_visit_.push_back(&member.value());
      }
    } else if (value.is_array()) {
      for (const json::value& element : value.get_array()) to_visit_.push_back(&element);
    } else if (value.is_object()) {
      to_visit_.push_back(&value);
    }
  }

  Fault Follow(std::string_view reference) {
    const size_t bad = FirstForbiddenUriByte(reference);
    if (bad != std::string_view::npos) {
      return fmt::format("Invalid URI reference '{}': unexpected character at index {}", reference,
                         bad);
    }
    if (DraftOf(reference)) return std::nullopt;
    const size_t hash = reference.find('#');
    const std::string_view resource = reference.substr(0, hash);
    if (!resource.empty()) return FollowResource(resource);
    if (hash == std::string_view::npos || hash + 1 == reference.size()) {
      to_visit_.push_back(&root_);
      return std::nullopt;
    }
    const std::string_view fragment = reference.substr(hash + 1);
    if (fragment.front() == '/') return FollowPointer(fragment);
    if (anchors_.count(fragment) > 0) return std::nullopt;
    return fmt::format("Anchor '{}' does not exist", fragment);
  }

  Fault FollowResource(std::string_view resource) const {
    for (std::string_view id : ids_) {
      if (id == resource || id.ends_with(fmt::format("/{}", resource)) || resource.ends_with(id)) {
        return std::nullopt;
      }
    }
    const bool is_absolute = resource.find(':') != std::string_view::npos;
    return fmt::format("Resource '{}' is not present in a registry and retrieving it failed: {}",
                       resource,
                       is_absolute ? fmt::format("Retrieval is disabled, cannot fetch {}", resource)
                                   : "No base URI is available");
  }

  Fault FollowPointer(std::string_view pointer) {
    const json::value* target = &root_;
    std::string_view rest = pointer;
    while (!rest.empty() && target != nullptr) {
      rest.remove_prefix(1);
      const size_t slash = std::min(rest.find('/'), rest.size());
      target = Child(*target, Unescape(rest.substr(0, slash)));
      rest.remove_prefix(slash);
    }
    if (target == nullptr) return fmt::format("Pointer '{}' does not exist", pointer);
    to_visit_.push_back(target);
    return std::nullopt;
  }

  static const json::value* Child(const json::value& value, const std::string& token) {
    if (value.is_object()) return value.get_object().if_contains(token);
    if (!value.is_array()) return nullptr;
    size_t index = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), index);
    const bool is_index = error == std::errc() && end == token.data() + token.size();
    return is_index ? value.get_array().if_contains(index) : nullptr;
  }

  // Percent escapes, then ~1 and ~0.
  static std::string Unescape(std::string_view token) {
    std::string bytes;
    for (size_t i = 0; i < token.size(); ++i) {
      unsigned value = 0;
      const char* digits = token.data() + i + 1;
      const bool is_escape = token[i] == '%' && i + 3 <= token.size() &&
                             std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
      bytes.push_back(is_escape ? static_cast<char>(value) : token[i]);
      if (is_escape) i += 2;
    }
    std::string out;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1')) {
        out.push_back(bytes[++i] == '0' ? '~' : '/');
      } else {
        out.push_back(bytes[i]);
      }
    }
    return out;
  }

  static size_t FirstForbiddenUriByte(std::string_view uri) {
    constexpr std::string_view kForbidden = " <>\"{}|\\^`";
    for (size_t i = 0; i < uri.size(); ++i) {
      const auto byte = static_cast<unsigned char>(uri[i]);
      if (byte < 0x21 || byte > 0x7E || kForbidden.find(uri[i]) != std::string_view::npos) return i;
    }
    return std::string_view::npos;
  }

  Draft draft_;
  const json::value& root_;
  std::vector<const json::value*> to_visit_;
  std::unordered_set<const json::value*> visited_;
  std::unordered_set<std::string_view> anchors_;
  std::vector<std::string_view> ids_;
};

}  // namespace

std::optional<std::string> CheckJsonSchema(const json::value& schema) {
  Draft draft = Draft::k2020;
  if (schema.is_object()) {
    const json::value* named = schema.get_object().if_contains("$schema");
    if (named != nullptr && named->is_string() && !named->get_string().empty()) {
      const std::optional<Draft> known = DraftOf(View(named->get_string()));
      if (!known) {
        return fmt::format(
            "Unknown meta-schema: '{}'. Custom meta-schemas must be registered in the registry "
            "before use",
            View(named->get_string()));
      }
      draft = *known;
    }
  }
  if (Fault fault = MetaChecker(draft).Schema(schema)) return fault;
  return ReachableChecker(draft, schema).Run();
}

}  // namespace deepinfer
