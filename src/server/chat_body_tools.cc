#include <fmt/format.h>

#include "server/chat_body.h"
#include "server/field_reader.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

const std::vector<std::string_view>& FunctionOnly() {
  static const std::vector<std::string_view> kTypes = {"function"};
  return kTypes;
}

BodyTool ReadTool(const json::value& value, const std::string& path, ReadState* state) {
  ObjectReader tool(state, value, path);
  BodyTool result;
  tool.RequiredOneOf("type", FunctionOnly());
  result.outer_namespace = tool.String("namespace");
  const json::value* function_value = tool.Require("function");
  if (function_value == nullptr) return result;
  ObjectReader function(state, *function_value, tool.PathOf("function"));
  result.name = function.RequiredString("name");
  result.description = function.String("description");
  result.parameters = function.Find("parameters");
  result.strict = function.Bool("strict");
  result.inner_namespace = function.String("namespace");
  return result;
}

// {"type": "function", "function": {"name": ...}}
void ReadNamedFunction(ObjectReader* choice, ReadState* state, std::string* name,
                       std::optional<std::string>* name_namespace) {
  choice->RequiredOneOf("type", FunctionOnly());
  *name_namespace = choice->String("namespace");
  const json::value* function_value = choice->Require("function");
  if (function_value == nullptr) return;
  ObjectReader function(state, *function_value, choice->PathOf("function"));
  *name = function.RequiredString("name");
  std::optional<std::string> inner = function.String("namespace");
  if (!*name_namespace) *name_namespace = std::move(inner);
}

BodyToolChoice ReadAllowedTools(ObjectReader* choice, ReadState* state) {
  static const std::vector<std::string_view> kModes = {"auto", "required"};
  BodyToolChoice result;
  result.restricts_tools = true;
  const json::value* value = choice->Require("allowed_tools");
  if (value == nullptr) return result;
  ObjectReader allowed(state, *value, choice->PathOf("allowed_tools"));
  if (allowed.RequiredOneOf("mode", kModes) == 1) {
    result.mode = BodyToolChoice::Mode::kRequired;
  }
  const json::value* tools = allowed.Require("tools");
  if (tools == nullptr) return result;
  if (!tools->is_array()) {
    allowed.WrongType("tools", "an array");
    return result;
  }
  for (size_t i = 0; i < tools->get_array().size() && !state->error; ++i) {
    ObjectReader entry(state, tools->get_array()[i], IndexPath(allowed.PathOf("tools"), i));
    std::string name;
    std::optional<std::string> name_namespace;
    ReadNamedFunction(&entry, state, &name, &name_namespace);
    result.allowed.push_back(name_namespace ? *name_namespace + "::" + name : name);
  }
  return result;
}

std::optional<std::vector<std::string>> ReadStrings(ObjectReader* object, std::string_view key) {
  const json::array* array = object->Array(key);
  if (array == nullptr) return std::nullopt;
  std::vector<std::string> strings;
  for (const json::value& element : *array) {
    if (!element.is_string()) {
      object->WrongType(key, "an array of strings");
      return std::nullopt;
    }
    strings.emplace_back(element.get_string());
  }
  return strings;
}

}  // namespace

void ReadTools(ObjectReader* body, ReadState* state, std::vector<BodyTool>* tools) {
  const json::array* array = body->Array("tools");
  if (array == nullptr) return;
  for (size_t i = 0; i < array->size() && !state->error; ++i) {
    tools->push_back(ReadTool((*array)[i], IndexPath("tools", i), state));
  }
}

std::optional<BodyToolChoice> ReadToolChoice(ObjectReader* body, ReadState* state) {
  const json::value* value = body->Find("tool_choice");
  if (value == nullptr) return std::nullopt;
  BodyToolChoice result;
  if (value->is_string()) {
    static const std::vector<std::string_view> kModes = {"none", "auto", "required"};
    result.mode = static_cast<BodyToolChoice::Mode>(body->RequiredOneOf("tool_choice", kModes));
    return result;
  }
  ObjectReader choice(state, *value, "tool_choice");
  static const std::vector<std::string_view> kTypes = {"function", "allowed_tools"};
  if (choice.RequiredOneOf("type", kTypes) == 1) return ReadAllowedTools(&choice, state);
  result.mode = BodyToolChoice::Mode::kNamed;
  ReadNamedFunction(&choice, state, &result.name, &result.name_namespace);
  return result;
}

std::optional<BodyResponseFormat> ReadResponseFormat(ObjectReader* body) {
  auto format = body->Object("response_format");
  if (!format) return std::nullopt;
  static const std::vector<std::string_view> kTypes = {"text", "json_object", "json_schema",
                                                       "regex"};
  BodyResponseFormat result;
  result.kind = static_cast<ResponseFormat>(format->RequiredOneOf("type", kTypes));
  if (result.kind == ResponseFormat::kRegex) {
    result.regex = format->RequiredString("regex");
  } else if (result.kind == ResponseFormat::kJsonSchema) {
    auto schema = format->Object("json_schema");
    if (!schema) {
      format->Fail("json_schema", "missing_required_parameter",
                   "Missing required parameter: 'response_format.json_schema'.");
      return result;
    }
    schema->String("name");
    result.strict = schema->Bool("strict").value_or(false);
    result.schema = schema->Require("schema");
  }
  return result;
}

void ReadStructuredOutputs(ObjectReader* body, std::vector<BodyStructuredOutput>* outputs) {
  auto read_schema = [outputs](ObjectReader* object, std::string_view key) {
    const json::value* schema = object->Find(key);
    if (schema == nullptr) return;
    BodyStructuredOutput output;
    output.schema = schema;
    output.path = object->PathOf(key);
    outputs->push_back(std::move(output));
  };
  auto read_text = [outputs](ObjectReader* object, std::string_view key, ConstraintKind kind) {
    std::optional<std::string> text = object->String(key);
    if (!text) return;
    outputs->push_back({kind, nullptr, std::move(*text), {}, object->PathOf(key)});
  };
  if (auto structured = body->Object("structured_outputs")) {
    const size_t before = outputs->size();
    read_schema(&*structured, "json");
    read_text(&*structured, "regex", ConstraintKind::kRegex);
    if (auto choices = ReadStrings(&*structured, "choice")) {
      outputs->push_back({ConstraintKind::kChoice,
                          nullptr,
                          {},
                          std::move(*choices),
                          structured->PathOf("choice")});
    }
    read_text(&*structured, "grammar", ConstraintKind::kGrammar);
    if (outputs->size() == before) {
      body->Fail("structured_outputs", "invalid_value",
                 "'structured_outputs' needs exactly one of json, regex, choice and grammar.");
    }
  }
  read_text(body, "grammar", ConstraintKind::kGrammar);
  read_schema(body, "json_schema");
}

}  // namespace deepinfer
