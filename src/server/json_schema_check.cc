#include "server/json_schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <iterator>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/json_schema_meta.h"
#include "server/regex_syntax.h"
#include "text/grammar_limits.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Fault = std::optional<std::string>;
using Draft = SchemaDraft;

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// Follows what a compiler of the schema would visit: subschemas in use and what they refer to.
class ReachableChecker {
  // A schema (no keyword) or one keyword of a schema.
  struct Step {
    std::string_view keyword;
    const json::value* value;
  };

 public:
  ReachableChecker(Draft draft, const json::value& root) : draft_(draft), root_(root) {
    CollectNames(root);
    SortIds();
  }

  // Depth first, in the order of the document, with a stack of its own: chains of references may
  // be long.
  Fault Run() {
    to_visit_.push_back({{}, &root_});
    while (!to_visit_.empty()) {
      const Step step = to_visit_.back();
      to_visit_.pop_back();
      if (step.keyword.empty()) {
        if (!visited_.insert(step.value).second) continue;
        if (Fault fault = PushSchema(*step.value)) return fault;
      } else if (Fault fault = VisitKeyword(step)) {
        return fault;
      }
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
        if (key == "$id" || key == "id") ids_.push_back(Reversed(text));
      }
      CollectNames(member.value());
    }
  }

  static std::string Reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

  void SortIds() {
    std::sort(ids_.begin(), ids_.end());
    for (const std::string& id : ids_) {
      if (shortest_ids_.empty() || !id.starts_with(shortest_ids_.back())) {
        shortest_ids_.push_back(id);
      }
    }
  }

  Fault PushSchema(const json::value& schema) {
    if (schema.is_bool()) return std::nullopt;
    if (!schema.is_object()) return NotOfSchemaType(schema);
    const json::object& object = schema.get_object();
    const bool has_branches = object.contains("then") || object.contains("else") ||
                              object.contains("unevaluatedItems") ||
                              object.contains("unevaluatedProperties");
    const size_t first = to_visit_.size();
    for (const auto& member : object) {
      const std::string_view key(member.key().data(), member.key().size());
      // A condition nobody asks about, and a branch without its condition, mean nothing.
      if (key == "if" && !has_branches) continue;
      if ((key == "then" || key == "else") && !object.contains("if")) continue;
      to_visit_.push_back({key, &member.value()});
    }
    std::reverse(to_visit_.begin() + static_cast<std::ptrdiff_t>(first), to_visit_.end());
    return std::nullopt;
  }

  Fault VisitKeyword(const Step& step) {
    const json::value& value = *step.value;
    if (step.keyword == "$ref" && value.is_string()) return Follow(View(value.get_string()));
    if (step.keyword == "pattern" && value.is_string() &&
        !IsRegexSyntax(View(value.get_string()))) {
      return ShownValue(value) + " is not a \"regex\"";
    }
    if (step.keyword == "patternProperties" && value.is_object()) {
      for (const auto& member : value.get_object()) {
        if (IsRegexSyntax({member.key().data(), member.key().size()})) continue;
        const bool shows_value = draft_ >= Draft::k2019;
        return ShownValue(shows_value ? member.value() : json::value(member.key())) +
               " is not a \"regex\"";
      }
    }
    PushSubschemas(step);
    return std::nullopt;
  }

  void PushSubschemas(const Step& step) {
    const SchemaKeyword* keyword = FindSchemaKeyword(draft_, step.keyword);
    if (keyword == nullptr) return;
    const bool is_in_use = keyword->vocabulary == SchemaVocabulary::kApplicator ||
                           keyword->vocabulary == SchemaVocabulary::kUnevaluated ||
                           keyword->name == "dependencies";
    if (!is_in_use) return;
    const size_t first = to_visit_.size();
    const json::value& value = *step.value;
    const bool is_map =
        keyword->rule == SchemaRule::kSchemaMap || keyword->rule == SchemaRule::kSchemaOrStringsMap;
    if (is_map && value.is_object()) {
      for (const auto& member : value.get_object()) {
        if (!member.value().is_array()) to_visit_.push_back({{}, &member.value()});
      }
    } else if (value.is_array()) {
      for (const json::value& element : value.get_array()) to_visit_.push_back({{}, &element});
    } else if (value.is_object()) {
      to_visit_.push_back({{}, &value});
    }
    std::reverse(to_visit_.begin() + static_cast<std::ptrdiff_t>(first), to_visit_.end());
  }

  Fault Follow(std::string_view reference) {
    if (!followed_.insert(reference).second) return std::nullopt;
    const size_t bad = FirstForbiddenUriByte(reference);
    if (bad != std::string_view::npos) {
      return fmt::format("Invalid URI reference '{}': unexpected character at index {}", reference,
                         bad);
    }
    if (SchemaDraftOf(reference)) return std::nullopt;
    const size_t hash = reference.find('#');
    const std::string_view resource = reference.substr(0, hash);
    if (!resource.empty()) return FollowResource(resource);
    if (hash == std::string_view::npos || hash + 1 == reference.size()) {
      to_visit_.push_back({{}, &root_});
      return std::nullopt;
    }
    const std::string_view fragment = reference.substr(hash + 1);
    if (fragment.front() == '/') return FollowPointer(fragment);
    if (anchors_.count(fragment) > 0) return std::nullopt;
    return fmt::format("Anchor '{}' does not exist", fragment);
  }

  // Whether an identifier ends with the resource behind a slash, or the resource with an
  // identifier.
  bool IsKnownResource(std::string_view resource) const {
    const std::string reversed = Reversed(resource);
    const std::string behind_slash = reversed + '/';
    const auto longer = std::lower_bound(ids_.begin(), ids_.end(), behind_slash);
    if (longer != ids_.end() && longer->starts_with(behind_slash)) return true;
    // None of these begins another, so what begins the resource stands right before it.
    const auto behind = std::upper_bound(shortest_ids_.begin(), shortest_ids_.end(), reversed);
    return behind != shortest_ids_.begin() && reversed.starts_with(*std::prev(behind));
  }

  Fault FollowResource(std::string_view resource) const {
    if (IsKnownResource(resource)) return std::nullopt;
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
    to_visit_.push_back({{}, target});
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
  std::vector<Step> to_visit_;
  std::unordered_set<const json::value*> visited_;
  std::unordered_set<std::string_view> anchors_;
  // Spelt backwards and in order, so that a search finds what shares an end.
  std::vector<std::string> ids_;
  std::vector<std::string> shortest_ids_;  // without those that begin with another
  std::unordered_set<std::string_view> followed_;
};

// Takes the length of the value in compact JSON, at the least, off *budget; stops when it is spent.
bool TakeLength(const json::value& value, size_t* budget) {
  const auto take = [&](size_t size_bytes) {
    const bool fits = size_bytes <= *budget;
    *budget = fits ? *budget - size_bytes : 0;
    return fits;
  };
  if (value.is_string()) return take(value.get_string().size() + 2);
  if (value.is_array()) {
    const json::array& items = value.get_array();
    return take(items.size() + 1) &&
           std::all_of(items.begin(), items.end(),
                       [&](const json::value& item) { return TakeLength(item, budget); });
  }
  if (!value.is_object()) return take(1);
  const json::object& members = value.get_object();
  return take(members.size() + 1) &&
         std::all_of(members.begin(), members.end(), [&](const auto& member) {
           return take(member.key().size() + 3) && TakeLength(member.value(), budget);
         });
}

}  // namespace

std::optional<std::string> CheckSchemaSize(const json::value& schema) {
  size_t budget = kMaxGrammarSourceBytes;
  if (TakeLength(schema, &budget)) return std::nullopt;
  return fmt::format("it is larger than {} KiB", kMaxGrammarSourceBytes >> 10);
}

std::optional<std::string> CheckJsonSchema(const json::value& schema) {
  std::optional<Draft> draft = Draft::k2020;
  const json::value* named =
      schema.is_object() ? schema.get_object().if_contains("$schema") : nullptr;
  if (named != nullptr && named->is_string() && !named->get_string().empty()) {
    draft = SchemaDraftOf(View(named->get_string()));
  }
  if (Fault fault = CheckMetaSchema(draft.value_or(Draft::k2020), schema)) return fault;
  if (!draft) {
    return fmt::format(
        "Unknown meta-schema: '{}'. Custom meta-schemas must be registered in the registry before "
        "use",
        View(named->get_string()));
  }
  return ReachableChecker(*draft, schema).Run();
}

}  // namespace deepinfer
