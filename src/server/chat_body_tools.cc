#include <fmt/format.h>

#include "server/chat_body.h"
#include "server/field_reader.h"
#include "text/python_json.h"

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
  result.name_path = function.PathOf("name");
  result.parameters_path = function.PathOf("parameters");
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
                                                       "regex", "structural_tag"};
  BodyResponseFormat result;
  result.kind = static_cast<ResponseFormat>(format->RequiredOneOf("type", kTypes));
  if (result.kind == ResponseFormat::kRegex) {
    result.regex = format->RequiredString("regex");
  } else if (result.kind == ResponseFormat::kStructuralTag) {
    result.structural_tag = CompactJson(*body->Find("response_format"));
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

namespace {

// Reads constraints of one object under the names it gives them.
class StructuredOutputReader {
 public:
  StructuredOutputReader(ObjectReader* object, std::vector<BodyStructuredOutput>* outputs)
      : object_(object), outputs_(outputs) {}

  void Schema(std::string_view key) {
    const json::value* schema = object_->Find(key);
    if (schema == nullptr) return;
    Add(ConstraintKind::kJson, key).schema = schema;
  }
  void Text(std::string_view key, ConstraintKind kind) {
    if (auto text = object_->String(key)) Add(kind, key).text = std::move(*text);
  }
  void Choices(std::string_view key) {
    if (auto choices = ReadStrings(object_, key)) {
      Add(ConstraintKind::kChoice, key).choices = std::move(*choices);
    }
  }
  void JsonObject(std::string_view key) {
    if (object_->Bool(key).value_or(false)) Add(ConstraintKind::kJson, key);
  }
  // An object, or a string that holds one.
  void StructuralTag(std::string_view key) {
    const json::value* tag = object_->Find(key);
    if (tag == nullptr) return;
    Add(ConstraintKind::kStructuralTag, key).text =
        tag->is_string() ? std::string(tag->get_string()) : CompactJson(*tag);
  }
  // Options that would change what is legal and that no grammar here follows.
  void RefuseOptions() {
    for (const std::string_view key : {"disable_any_whitespace", "disable_additional_properties"}) {
      if (object_->Bool(key).value_or(false)) Unsupported(key);
    }
    if (object_->String("whitespace_pattern")) Unsupported("whitespace_pattern");
  }

 private:
  BodyStructuredOutput& Add(ConstraintKind kind, std::string_view key) {
    BodyStructuredOutput& output = outputs_->emplace_back();
    output.kind = kind;
    output.path = object_->PathOf(key);
    return output;
  }
  void Unsupported(std::string_view key) {
    object_->Fail(key, "unsupported_parameter",
                  fmt::format("'{}' is not supported.", object_->PathOf(key)));
  }

  ObjectReader* object_;
  std::vector<BodyStructuredOutput>* outputs_;
};

}  // namespace

void ReadStructuredOutputs(ObjectReader* body, std::vector<BodyStructuredOutput>* outputs) {
  if (auto structured = body->Object("structured_outputs")) {
    StructuredOutputReader reader(&*structured, outputs);
    reader.Schema("json");
    reader.Text("regex", ConstraintKind::kRegex);
    reader.Choices("choice");
    reader.Text("grammar", ConstraintKind::kGrammar);
    reader.JsonObject("json_object");
    reader.StructuralTag("structural_tag");
    reader.RefuseOptions();
    if (outputs->empty()) {
      body->Fail("structured_outputs", "invalid_value",
                 "'structured_outputs' needs exactly one of json, regex, choice, grammar, "
                 "json_object and structural_tag.");
    }
  }
  StructuredOutputReader reader(body, outputs);
  reader.Text("grammar", ConstraintKind::kGrammar);
  reader.Schema("json_schema");
  reader.Schema("guided_json");
  reader.Text("guided_regex", ConstraintKind::kRegex);
  reader.Choices("guided_choice");
  reader.Text("guided_grammar", ConstraintKind::kGrammar);
}

}  // namespace deepinfer
