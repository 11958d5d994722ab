#include "server/strict_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "server/field_reader.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Fault = std::optional<std::string>;

constexpr std::string_view kNoKind = "one of `type`, `anyOf`, `$ref` field is required";
constexpr std::array<std::string_view, 7> kTypes = {"object",  "string", "number", "integer",
                                                    "boolean", "array",  "null"};
constexpr std::array<std::string_view, 5> kListTypes = {"string", "number", "integer", "boolean",
                                                        "null"};
constexpr std::array<std::string_view, 5> kFormats = {"email", "hostname", "ipv4", "ipv6", "uuid"};
// Kept keywords of numbers and integers, in the order in which they are written.
constexpr std::array<std::string_view, 7> kNumberKeywords = {
    "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

// The order in which kept keywords are written, whatever the type.
constexpr std::array<std::string_view, 16> kWrittenOrder = {"properties",
                                                            "additionalProperties",
                                                            "required",
                                                            "items",
                                                            "description",
                                                            "pattern",
                                                            "format",
                                                            "enum",
                                                            "const",
                                                            "default",
                                                            "minimum",
                                                            "maximum",
                                                            "exclusiveMinimum",
                                                            "exclusiveMaximum",
                                                            "multipleOf",
                                                            "$def"};

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// What a value is, in the words of a type error.
std::string Describe(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return fmt::format("boolean `{}`", value.get_bool());
    case json::kind::int64:
      return fmt::format("integer `{}`", value.get_int64());
    case json::kind::uint64:
      return fmt::format("integer `{}`", value.get_uint64());
    case json::kind::double_:
      return fmt::format("floating point `{}`", CompactJson(value));
    case json::kind::string:
      return fmt::format("string {}", CompactJson(value));
    case json::kind::array:
      return "sequence";
    case json::kind::object:
      return "map";
  }
  return "value";
}

std::string WrongType(const json::value& value, std::string_view expected) {
  return fmt::format("invalid type: {}, expected {}", Describe(value), expected);
}

template <size_t N>
std::string UnknownVariant(std::string_view name, const std::array<std::string_view, N>& known) {
  std::string text = fmt::format("unknown variant `{}`, expected one of ", name);
  for (size_t i = 0; i < N; ++i) {
    if (i > 0) text += ", ";
    text.append("`").append(known[i]).append("`");
  }
  return text;
}

template <size_t N>
bool IsKnown(std::string_view name, const std::array<std::string_view, N>& known) {
  return std::find(known.begin(), known.end(), name) != known.end();
}

// The field unless it is absent or null.
const json::value* Field(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains({key.data(), key.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

// Reads a schema into its kept form. Faults of shape come from here, before any fault of meaning.
class Reader {
 public:
  Fault Read(const json::value& schema, json::value* out) {
    if (!schema.is_object()) return std::string(kNoKind);
    const json::object& object = schema.get_object();
    if (const json::value* type = object.if_contains("type")) {
      return type->is_array() ? ReadTypeList(object, type->get_array(), out)
                              : ReadTyped(object, *type, out);
    }
    if (const json::value* variants = object.if_contains("anyOf")) {
      return ReadAnyOf(object, *variants, out);
    }
    if (const json::value* reference = object.if_contains("$ref")) {
      if (!reference->is_string()) {
        return fmt::format("field `$ref`: {}", WrongType(*reference, "a string"));
      }
      *out = json::object{{"$ref", *reference}};
      return std::nullopt;
    }
    return std::string(kNoKind);
  }

 private:
  Fault ReadTyped(const json::object& object, const json::value& type, json::value* out) {
    if (!type.is_string()) return WrongType(type, "variant identifier");
    const std::string_view name = View(type.get_string());
    if (!IsKnown(name, kTypes)) return UnknownVariant(name, kTypes);
    // Read in the order of the document, so that its first fault is reported; written in one order.
    json::object read;
    for (const auto& member : object) {
      const std::string_view key(member.key().data(), member.key().size());
      if (key == "items" && name == "array") {
        if (Fault fault = Read(member.value(), &read["items"])) return fault;
      } else if (!member.value().is_null()) {
        if (Fault fault = ReadKeyword(name, key, member.value(), &read)) return fault;
      }
    }
    json::object& kept = out->emplace_object();
    kept["type"] = type;
    if (name == "object") {
      kept["properties"] = json::object();
      kept["additionalProperties"] = false;
      kept["required"] = nullptr;
    }
    if (name == "array" && !read.contains("items")) return std::string("missing field `items`");
    for (std::string_view key : kWrittenOrder) {
      json::value* value = read.if_contains({key.data(), key.size()});
      if (value != nullptr) kept[{key.data(), key.size()}] = std::move(*value);
    }
    return std::nullopt;
  }

  // One keyword of a schema of type `type`; those the type does not keep are ignored.
  Fault ReadKeyword(std::string_view type, std::string_view key, const json::value& value,
                    json::object* read) {
    const json::string_view name(key.data(), key.size());
    Fault fault;
    if (key == "description" || (key == "pattern" && type == "string")) {
      if (!value.is_string()) fault = WrongType(value, "a string");
    } else if (type == "object" && (key == "properties" || key == "$def")) {
      return ReadSchemaMap(value, &(*read)[name].emplace_object());
    } else if (type == "object" && key == "additionalProperties") {
      if (!value.is_bool()) fault = WrongType(value, "a boolean");
    } else if ((type == "object" && key == "required") || (type == "string" && key == "enum")) {
      fault = StringsFault(value);
    } else if (type == "string" && key == "format") {
      fault = FormatFault(value);
    } else if ((type == "number" || type == "integer") && IsKnown(key, kNumberKeywords)) {
      fault = NumberFault(value, type == "integer");
    } else {
      return std::nullopt;
    }
    if (!fault) (*read)[name] = value;
    return fault;
  }

  Fault ReadTypeList(const json::object& object, const json::array& types, json::value* out) {
    for (const json::value& type : types) {
      if (!type.is_string()) {
        return fmt::format("field `type`: {}", WrongType(type, "string or map"));
      }
      const std::string_view name = View(type.get_string());
      if (!IsKnown(name, kListTypes)) {
        return fmt::format("field `type`: {}", UnknownVariant(name, kListTypes));
      }
    }
    json::object& kept = out->emplace_object();
    kept["type"] = types;
    return KeepString(object, "description", &kept);
  }

  Fault ReadAnyOf(const json::object& object, const json::value& variants, json::value* out) {
    if (!variants.is_array()) {
      return fmt::format("field `anyOf`: {}", WrongType(variants, "a sequence"));
    }
    json::object& kept = out->emplace_object();
    json::array kept_variants;
    for (const json::value& variant : variants.get_array()) {
      // A variant names one type; neither lists of types nor references are read here.
      Fault fault;
      json::value kept_variant;
      if (!variant.is_object()) {
        fault = WrongType(variant, "internally tagged enum JsonSchemaType");
      } else if (const json::value* type = variant.get_object().if_contains("type")) {
        fault = ReadTyped(variant.get_object(), *type, &kept_variant);
      } else {
        fault = "missing field `type`";
      }
      if (fault) return fmt::format("field `anyOf`: {}", *fault);
      kept_variants.push_back(std::move(kept_variant));
    }
    kept["anyOf"] = std::move(kept_variants);
    return KeepString(object, "description", &kept);
  }

  Fault ReadSchemaMap(const json::value& schemas, json::object* kept) {
    if (!schemas.is_object()) return WrongType(schemas, "a map");
    for (const auto& member : schemas.get_object()) {
      if (Fault fault = Read(member.value(), &(*kept)[member.key()])) return fault;
    }
    return std::nullopt;
  }

  static Fault StringsFault(const json::value& value) {
    if (!value.is_array()) return WrongType(value, "a sequence");
    for (const json::value& element : value.get_array()) {
      if (!element.is_string()) return WrongType(element, "a string");
    }
    return std::nullopt;
  }

  static Fault FormatFault(const json::value& value) {
    if (!value.is_string()) return WrongType(value, "string or map");
    const std::string_view name = View(value.get_string());
    return IsKnown(name, kFormats) ? std::nullopt : Fault(UnknownVariant(name, kFormats));
  }

  static Fault NumberFault(const json::value& value, bool is_integer) {
    if (!is_integer) {
      return value.is_number() ? std::nullopt : Fault(WrongType(value, "a JSON number"));
    }
    if (value.is_uint64()) {
      return fmt::format("invalid value: {}, expected i64", Describe(value));
    }
    return value.is_int64() ? std::nullopt : Fault(WrongType(value, "i64"));
  }

  static Fault KeepString(const json::object& object, std::string_view key, json::object* kept) {
    const json::value* value = Field(object, key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return WrongType(*value, "a string");
    (*kept)[{key.data(), key.size()}] = *value;
    return std::nullopt;
  }
};

// Closes the objects of a schema that Reader made, children first.
Fault Close(json::value* schema, bool empty_object_is_fine) {
  json::object& object = schema->get_object();
  if (json::value* variants = object.if_contains("anyOf")) {
    for (json::value& variant : variants->get_array()) {
      if (Fault fault = Close(&variant, empty_object_is_fine)) return fault;
    }
    return std::nullopt;
  }
  if (json::value* items = object.if_contains("items")) return Close(items, false);
  json::value* properties = object.if_contains("properties");
  if (properties == nullptr) return std::nullopt;

  json::object& members = properties->get_object();
  if (members.empty() && !empty_object_is_fine) {
    return std::string("An object with no properties is not allowed.");
  }
  for (auto& member : members) {
    if (Fault fault = Close(&member.value(), false)) return fault;
  }
  if (json::value* definitions = object.if_contains("$def")) {
    for (auto& member : definitions->get_object()) {
      if (Fault fault = Close(&member.value(), false)) return fault;
    }
  }
  // at() instead of operator[], which may move the members even when the key exists.
  if (object.at("additionalProperties").get_bool()) {
    return std::string("additionalProperties should not be true");
  }
  json::value& required = object.at("required");
  if (required.is_array()) {
    std::vector<std::string_view> seen;
    for (const json::value& name : required.get_array()) {
      const std::string_view text = View(name.get_string());
      if (!members.contains(name.get_string())) {
        return fmt::format("Required property '{}' not found in object", text);
      }
      if (std::find(seen.begin(), seen.end(), text) != seen.end()) {
        return fmt::format("Duplicate required property '{}'", text);
      }
      seen.push_back(text);
    }
    if (seen.size() != members.size()) {
      return std::string("Required properties must match all properties in the object");
    }
  }
  json::array all;
  for (const auto& member : members) all.emplace_back(member.key());
  required = std::move(all);
  return std::nullopt;
}

}  // namespace

tl::expected<json::value, std::string> TransformStrictSchema(const json::value& schema,
                                                             StrictUse use) {
  const bool is_tool = use == StrictUse::kToolParameters;
  json::value result;
  if (Fault fault = Reader().Read(schema, &result)) {
    return tl::unexpected(
        (is_tool ? "Invalid tool parameters schema : " : "Invalid json schema: ") + *fault);
  }
  if (Fault fault = Close(&result, is_tool)) return tl::unexpected(*fault);
  const json::value* type = result.get_object().if_contains("type");
  if (type == nullptr || !type->is_string() || type->get_string() != "object") {
    return tl::unexpected(fmt::format("The top level of the {} must be an object.",
                                      is_tool ? "function parameters schema" : "json schema"));
  }
  return result;
}

}  // namespace deepinfer
