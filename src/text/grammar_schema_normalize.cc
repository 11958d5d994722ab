#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "text/grammar_schema.h"
#include "text/schema_walk.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

constexpr std::string_view kCountKeywords[] = {"minLength",   "maxLength",     "minItems",
                                               "maxItems",    "minProperties", "maxProperties",
                                               "minContains", "maxContains"};
constexpr std::string_view kLimitKeywords[] = {"minimum", "exclusiveMinimum", "maximum",
                                               "exclusiveMaximum"};
constexpr double kIntegerBound = 9223372036854775808.0;  // 2^63

bool IsAnything(const json::value& schema) {
  return schema == json::value(true) || (schema.is_object() && schema.get_object().empty());
}

std::optional<int64_t> CountOf(const json::object& schema, std::string_view key) {
  const json::value* count = schema.if_contains(key);
  if (count == nullptr || !count->is_int64()) return std::nullopt;
  return count->get_int64();
}

json::array* ArrayOf(json::object* schema, std::string_view key) {
  json::value* values = schema->if_contains(key);
  return values != nullptr && values->is_array() ? &values->get_array() : nullptr;
}

template <typename Matches>
void EraseIf(json::array* values, const Matches& matches) {
  values->erase(std::remove_if(values->begin(), values->end(), matches), values->end());
}

// Whether a value is of a type of JSON Schema.
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
  if (!schema->contains("type")) return;
  const auto fits = [&](const json::value& value) {
    return AnyNamedType(*schema, [&](std::string_view type) { return IsOfType(value, type); });
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

// Counts are whole numbers, however they are written.
void WriteCountsAsIntegers(json::object* schema) {
  for (const std::string_view key : kCountKeywords) {
    json::value* count = schema->if_contains(key);
    if (count == nullptr || !count->is_number() || count->is_int64()) continue;
    const auto value = count->to_number<double>();
    if (value >= kIntegerBound) {
      *count = INT64_MAX;
    } else if (value >= 0 && std::trunc(value) == value) {
      *count = static_cast<int64_t>(value);
    }
  }
  // The compiler reads no more.
  const std::optional<int64_t> most = CountOf(*schema, "maxProperties");
  if (most && *most > INT32_MAX) schema->erase("maxProperties");
  if (!schema->contains("contains")) {
    schema->erase("minContains");
    schema->erase("maxContains");
  }
}

// The least integer of 64 bits that is at least `limit`, or above it; nothing if there is none.
std::optional<int64_t> LeastInteger(double limit, bool exclusive) {
  if (limit >= kIntegerBound) return std::nullopt;
  if (limit < -kIntegerBound) return INT64_MIN;
  const double whole = std::ceil(limit);
  return static_cast<int64_t>(whole) + (exclusive && whole == limit ? 1 : 0);
}

std::optional<int64_t> GreatestInteger(double limit, bool exclusive) {
  const std::optional<int64_t> negated = LeastInteger(-limit, exclusive);
  if (!negated) return std::nullopt;
  return *negated == INT64_MIN ? INT64_MAX : -*negated;
}

// The compiler takes limits of integers that are integers of 64 bits.
void WriteIntegerLimits(json::object* schema) {
  if (!NamesType(*schema, "integer")) return;
  if (NamesType(*schema, "number")) {
    // They are numbers too.
    EraseIf(ArrayOf(schema, "type"),
            [](const json::value& type) { return type == json::value("integer"); });
    return;
  }
  for (const bool exclusive : {false, true}) {
    for (const bool least : {false, true}) {
      const std::string_view inclusive_key = least ? "minimum" : "maximum";
      const std::string_view key =
          !exclusive ? inclusive_key : (least ? "exclusiveMinimum" : "exclusiveMaximum");
      const json::value* limit = schema->if_contains(key);
      if (limit == nullptr || !limit->is_number() || limit->is_int64()) continue;
      const auto value = limit->to_number<double>();
      std::optional<int64_t> integer =
          least ? LeastInteger(value, exclusive) : GreatestInteger(value, exclusive);
      if (!integer) continue;
      schema->erase(key);
      if (const std::optional<int64_t> other = CountOf(*schema, inclusive_key)) {
        integer = least ? std::max(*integer, *other) : std::min(*integer, *other);
      }
      (*schema)[inclusive_key] = *integer;
    }
  }
}

// An integer that no double is.
bool IsRounded(const json::value& number) {
  constexpr uint64_t kExactIntegers = uint64_t{1} << 53;
  if (number.is_double()) return false;
  if (number.is_uint64()) return number.get_uint64() > kExactIntegers;
  return number.get_int64() > static_cast<int64_t>(kExactIntegers) ||
         number.get_int64() < -static_cast<int64_t>(kExactIntegers);
}

// What the limits of a number leave.
struct Range {
  double least = -HUGE_VAL;
  double most = HUGE_VAL;
  bool least_excluded = false;
  bool most_excluded = false;
  double step = 0;  // multipleOf

  bool IsEmpty(bool of_integers) const {
    if (!of_integers) return least > most || (least == most && (least_excluded || most_excluded));
    const double unit = step >= 1 && std::trunc(step) == step ? step : 1;
    const double first = std::ceil(least / unit) * unit;
    const double last = std::floor(most / unit) * unit;
    return (first == least && least_excluded ? first + unit : first) >
           (last == most && most_excluded ? last - unit : last);
  }

  // Whether one of six digits behind the point is in it.
  bool HoldsWrittenNumber() const {
    constexpr double kScale = 1e6;
    // Doubles of this size are further apart than that, or written as they are.
    constexpr double kLarge = 1e9;
    if (most - least >= 2 / kScale || std::abs(least) > kLarge) return true;
    const auto steps = [&](double limit, bool excluded, double direction) {
      const double nearest = std::round(limit * kScale);
      if (nearest / kScale == limit) return nearest + (excluded ? direction : 0);
      return direction > 0 ? std::ceil(limit * kScale) : std::floor(limit * kScale);
    };
    return steps(least, least_excluded, 1) <= steps(most, most_excluded, -1);
  }
};

Range RangeOf(const json::object& schema) {
  Range range;
  for (const std::string_view key : kLimitKeywords) {
    const json::value* limit = schema.if_contains(key);
    if (limit == nullptr || !limit->is_number()) continue;
    const auto value = limit->to_number<double>();
    const bool excluded = key.starts_with("exclusive");
    if (key.ends_with("inimum") && value >= range.least) {
      range.least_excluded = excluded || (value == range.least && range.least_excluded);
      range.least = value;
    } else if (key.ends_with("aximum") && value <= range.most) {
      range.most_excluded = excluded || (value == range.most && range.most_excluded);
      range.most = value;
    }
  }
  const json::value* step = schema.if_contains("multipleOf");
  if (step != nullptr && step->is_number()) range.step = step->to_number<double>();
  return range;
}

// One walk over a schema with its definitions.
class Normalizer {
 public:
  explicit Normalizer(json::value* root) : root_(*root) {}

  void Run() {
    refers_into_unions_ = RefersIntoUnions(root_);
    At(&root_);
  }

 private:
  static bool RefersIntoUnions(const json::value& schema) {
    const json::value* reference =
        schema.is_object() ? schema.get_object().if_contains("$ref") : nullptr;
    if (reference != nullptr && reference->is_string() &&
        std::string_view(reference->get_string()).find("Of/") != std::string_view::npos) {
      return true;
    }
    return VisitSubschemas(schema, [](const std::string&, const json::value& child) {
      return RefersIntoUnions(child);
    });
  }

  void At(json::value* schema) {
    VisitSubschemas(*schema, [&](const std::string&, json::value& child) {
      At(&child);
      return false;
    });
    if (!schema->is_object()) return;
    json::object& object = schema->get_object();
    WriteCountsAsIntegers(&object);
    DropValuesOfOtherTypes(&object);
    WriteIntegerLimits(&object);
    SimplifyUnions(&object);
    SimplifyArray(&object);
    SimplifyPropertyNames(&object);
    SimplifyObject(&object);
    DropNeverTypes(&object);
  }

  // Whether nothing can fulfil the schema, as far as it says so itself.
  bool IsNever(const json::value& schema) const {
    if (schema == json::value(false)) return true;
    if (!schema.is_object()) return false;
    const json::object& object = schema.get_object();
    const auto any = [&](std::string_view key, bool empty) {
      const json::value* values = object.if_contains(key);
      if (values == nullptr || !values->is_array()) return false;
      const json::array& options = values->get_array();
      const auto never = [&](const json::value& option) { return IsNever(option); };
      return empty ? std::all_of(options.begin(), options.end(), never)
                   : std::any_of(options.begin(), options.end(), never);
    };
    const json::value* values = object.if_contains("enum");
    if (values != nullptr && values->is_array() && values->get_array().empty()) return true;
    const json::value* excluded = object.if_contains("not");
    if (excluded != nullptr && IsAnything(*excluded)) return true;
    if (any("anyOf", true) || any("oneOf", true) || any("allOf", false)) return true;
    if (IsNeverReference(object)) return true;
    return object.contains("type") &&
           !AnyNamedType(object, [&](std::string_view type) { return !IsNeverAs(object, type); });
  }

  bool IsNeverAs(const json::object& schema, std::string_view type) const {
    if (type == "array") return IsNeverArray(schema);
    if (type == "object") return IsNeverObject(schema);
    if (type == "integer" || type == "number") return RangeOf(schema).IsEmpty(type == "integer");
    return type == "string" && CountOf(schema, "minLength").value_or(0) >
                                   CountOf(schema, "maxLength").value_or(INT64_MAX);
  }

  bool IsNeverReference(const json::object& schema) const {
    const json::value* reference = schema.if_contains("$ref");
    if (reference == nullptr || !reference->is_string()) return false;
    const std::string_view pointer = reference->get_string();
    if (!pointer.starts_with("#/")) return false;
    json::error_code error;
    const json::value* target = root_.find_pointer(pointer.substr(1), error);
    if (target == nullptr) return false;
    // Once for each target, however many ways lead there: what it says is not changed by writing it
    // in another form. One that leads back to itself does not say so by that.
    const auto [known, is_new] = never_targets_.try_emplace(std::string(pointer), false);
    if (!is_new) return known->second;
    const bool never = IsNever(*target);
    never_targets_[std::string(pointer)] = never;
    return never;
  }

  bool IsNeverArray(const json::object& schema) const {
    const int64_t least = CountOf(schema, "minItems").value_or(0);
    const json::value* prefix = schema.if_contains("prefixItems");
    const size_t num_prefix =
        prefix != nullptr && prefix->is_array() ? prefix->get_array().size() : 0;
    const json::value* items = schema.if_contains("items");
    if (items == nullptr) items = schema.if_contains("unevaluatedItems");
    const bool closed = items != nullptr && *items == json::value(false);
    return least > CountOf(schema, "maxItems").value_or(INT64_MAX) ||
           (closed && least > static_cast<int64_t>(num_prefix));
  }

  bool IsNeverObject(const json::object& schema) const {
    const int64_t most = CountOf(schema, "maxProperties").value_or(INT64_MAX);
    const int64_t least = CountOf(schema, "minProperties").value_or(0);
    const json::value* required = schema.if_contains("required");
    const json::value* named = schema.if_contains("properties");
    const json::object* properties =
        named != nullptr && named->is_object() ? &named->get_object() : nullptr;
    const bool closed = HasAny(schema, {"additionalProperties", "unevaluatedProperties"}) &&
                        !IsOpenObject(schema) && !schema.contains("patternProperties");
    const size_t num_named = properties != nullptr ? properties->size() : 0;
    if (least > most || (closed && least > static_cast<int64_t>(num_named))) return true;
    if (required == nullptr || !required->is_array()) return false;
    const json::array& names = required->get_array();
    return static_cast<int64_t>(names.size()) > most ||
           std::any_of(names.begin(), names.end(), [&](const json::value& name) {
             const json::value* property = properties != nullptr && name.is_string()
                                               ? properties->if_contains(name.get_string())
                                               : nullptr;
             return property != nullptr ? IsNever(*property) : closed;
           });
  }

  // Of several types those that can be fulfilled; any other than the one that the keywords are
  // about where none is named.
  void DropNeverTypes(json::object* schema) const {
    if (json::array* types = ArrayOf(schema, "type")) {
      const auto never = [&](const json::value& type) {
        return type.is_string() && IsNeverAs(*schema, std::string_view(type.get_string()));
      };
      if (!std::all_of(types->begin(), types->end(), never)) EraseIf(types, never);
      return;
    }
    if (schema->contains("type")) return;
    std::string_view implied;
    if (HasAny(*schema,
               {"properties", "additionalProperties", "unevaluatedProperties", "required"})) {
      implied = "object";
    } else if (HasAny(*schema, {"items", "prefixItems", "unevaluatedItems"})) {
      implied = "array";
    }
    if (implied.empty() || !IsNeverAs(*schema, implied)) return;
    json::array others;
    for (const std::string_view type : {"string", "number", "boolean", "null", "array", "object"}) {
      if (type != implied && !IsNeverAs(*schema, type)) others.emplace_back(type);
    }
    (*schema)["type"] = std::move(others);
  }

  // What nothing fulfils is no choice, what everything fulfils no condition. References to the
  // others must not lead elsewhere.
  void SimplifyUnions(json::object* schema) const {
    if (refers_into_unions_) return;
    const auto never = [&](const json::value& option) { return IsNever(option); };
    for (const std::string_view key : {"anyOf", "oneOf"}) {
      json::array* options = ArrayOf(schema, key);
      if (options == nullptr || std::all_of(options->begin(), options->end(), never)) continue;
      EraseIf(options, never);
    }
    json::array* conditions = ArrayOf(schema, "allOf");
    if (conditions != nullptr) {
      EraseIf(conditions, IsAnything);
      if (conditions->empty()) schema->erase("allOf");
    }
    const json::value* excluded = schema->if_contains("not");
    if (excluded != nullptr && IsNever(*excluded)) schema->erase("not");
  }

  void SimplifyArray(json::object* schema) const {
    // Tuples of older drafts.
    if (ArrayOf(schema, "items") != nullptr && !schema->contains("prefixItems")) {
      json::value prefix = std::move((*schema)["items"]);
      schema->erase("items");
      if (const json::value* rest = schema->if_contains("additionalItems")) {
        json::value items = *rest;
        (*schema)["items"] = std::move(items);
      }
      (*schema)["prefixItems"] = std::move(prefix);
    }
    for (const std::string_view key : {"items", "unevaluatedItems"}) {
      json::value* items = schema->if_contains(key);
      if (items != nullptr && IsNever(*items)) *items = false;
    }
    json::array* prefix = ArrayOf(schema, "prefixItems");
    if (prefix == nullptr) return;
    size_t most = static_cast<size_t>(
        std::clamp<int64_t>(CountOf(*schema, "maxItems").value_or(INT64_MAX), 0, INT64_MAX));
    for (size_t i = 0; i < prefix->size(); ++i) {
      json::value& item = (*prefix)[i];
      if (item == json::value(true)) item = json::object();
      if (IsNever(item)) most = std::min(most, i);
    }
    const bool ends = most < prefix->size();
    if (ends) prefix->resize(most);
    const auto num_prefix = static_cast<int64_t>(prefix->size());
    if (num_prefix == 0) schema->erase("prefixItems");
    if (ends) {
      (*schema)["items"] = false;
    } else if (CountOf(*schema, "minItems").value_or(0) > num_prefix &&
               !HasAny(*schema, {"items", "unevaluatedItems"})) {
      (*schema)["items"] = json::object();
    }
  }

  // Names are strings.
  void SimplifyPropertyNames(json::object* schema) const {
    json::value* names = schema->if_contains("propertyNames");
    if (names == nullptr) return;
    if (*names == json::value(true)) {
      schema->erase("propertyNames");
      return;
    }
    bool never = IsNever(*names);
    if (names->is_object()) {
      json::object& object = names->get_object();
      if (!HasAny(object, {"$ref", "anyOf", "oneOf", "allOf"})) {
        never = never || (object.contains("type") && !NamesType(object, "string"));
        object["type"] = "string";
        DropValuesOfOtherTypes(&object);
        never = never || IsNever(*names);
      }
    }
    if (!never) return;
    schema->erase("propertyNames");
    schema->erase("patternProperties");
    schema->erase("unevaluatedProperties");
    (*schema)["additionalProperties"] = false;
    json::value* properties = schema->if_contains("properties");
    if (properties == nullptr || !properties->is_object()) {
      (*schema)["properties"] = json::object();
      return;
    }
    for (auto& property : properties->get_object()) property.value() = false;
  }

  void SimplifyObject(json::object* schema) const {
    for (const std::string_view key : {"additionalProperties", "unevaluatedProperties"}) {
      json::value* others = schema->if_contains(key);
      if (others != nullptr && IsNever(*others)) *others = false;
    }
    if (!IsOpenObject(*schema)) {
      DropNeverMembers(schema, "patternProperties");
      const json::value* patterns = schema->if_contains("patternProperties");
      if (patterns != nullptr && patterns->is_object() && patterns->get_object().empty()) {
        schema->erase("patternProperties");
        (*schema)["additionalProperties"] = false;
      }
    }
    if (IsOpenObject(*schema) || schema->contains("patternProperties")) {
      MarkNeverMembers(schema);
    } else {
      DropNeverMembers(schema, "properties");
    }
    const json::value* properties = schema->if_contains("properties");
    if (properties == nullptr || !properties->is_object()) return;
    const auto num_named = static_cast<int64_t>(properties->get_object().size());
    if (CountOf(*schema, "minProperties").value_or(0) > num_named &&
        !HasAny(*schema, {"additionalProperties", "unevaluatedProperties", "patternProperties"})) {
      (*schema)["additionalProperties"] = true;
    }
  }

  // Members that nothing fulfils and that are not asked for: without them the object is closed to
  // their names.
  void DropNeverMembers(json::object* schema, std::string_view key) const {
    json::value* members = schema->if_contains(key);
    if (members == nullptr || !members->is_object()) return;
    json::object kept;
    for (auto& member : members->get_object()) {
      if (IsNever(member.value()) && !IsRequired(*schema, member.key())) continue;
      kept.emplace(member.key(), std::move(member.value()));
    }
    *members = std::move(kept);
  }

  void MarkNeverMembers(json::object* schema) const {
    for (const std::string_view key : {"properties", "patternProperties"}) {
      json::value* members = schema->if_contains(key);
      if (members == nullptr || !members->is_object()) continue;
      for (auto& member : members->get_object()) {
        if (IsNever(member.value())) member.value() = false;
      }
    }
  }

  json::value& root_;
  bool refers_into_unions_ = false;
  mutable std::unordered_map<std::string, bool> never_targets_;  // of references, by pointer
};

}  // namespace

std::vector<std::string_view> LostLimits(const json::object& schema) {
  std::vector<std::string_view> limits;
  const bool integers = NamesType(schema, "integer");
  if (!integers && !NamesType(schema, "number")) return limits;
  const Range range = RangeOf(schema);
  const bool all = !integers && !range.IsEmpty(false) && !range.HoldsWrittenNumber();
  for (const std::string_view key : kLimitKeywords) {
    const json::value* limit = schema.if_contains(key);
    if (limit == nullptr || !limit->is_number()) continue;
    if (all || (integers ? !limit->is_int64() : IsRounded(*limit))) limits.push_back(key);
  }
  return limits;
}

void NormalizeSchema(json::value* schema) { Normalizer(schema).Run(); }

}  // namespace deepinfer
