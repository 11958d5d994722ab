#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <unordered_set>

#include "server/chat_convert.h"
#include "server/json_schema_check.h"
#include "server/strict_schema.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Mode = BodyToolChoice::Mode;

constexpr std::string_view kNamespaceSeparator = "::";

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

Refusal CheckNamespace(const BodyTool& tool, size_t index) {
  const std::string path = fmt::format("tools[{}].namespace", index);
  if (tool.outer_namespace && tool.inner_namespace &&
      *tool.outer_namespace != *tool.inner_namespace) {
    return Refuse(path, fmt::format("Tool '{}' is given two different namespaces.", tool.name));
  }
  for (const auto& name : {tool.outer_namespace, tool.inner_namespace}) {
    if (!name) continue;
    if (name->empty()) return Refuse(path, "A tool namespace must not be empty.");
    if (name->find(kNamespaceSeparator) != std::string::npos) {
      return Refuse(path, "A tool namespace must not contain '::'.");
    }
  }
  return std::nullopt;
}

std::string JoinName(const std::optional<std::string>& outer,
                     const std::optional<std::string>& inner, const std::string& name) {
  const std::optional<std::string>& prefix = outer ? outer : inner;
  return prefix ? fmt::format("{}{}{}", *prefix, kNamespaceSeparator, name) : name;
}

std::string FullName(const BodyTool& tool) {
  if (!tool.prompt_name.empty()) return tool.prompt_name;
  return JoinName(tool.outer_namespace, tool.inner_namespace, tool.name);
}

// One declared tool in the form the prompt and the grammar use.
struct ConvertedTool {
  Tool prompt;
  std::string constraint_json;
};

std::string ConstraintJson(const BodyTool& tool, const Tool& prompt,
                           const std::string& parameters) {
  std::string out = "{\"type\":\"function\",\"function\":{\"name\":";
  WriteJsonString(prompt.name, &out);
  out += ",\"description\":";
  if (tool.description) {
    WriteJsonString(*tool.description, &out);
  } else {
    out += "null";
  }
  out += ",\"parameters\":" + parameters + ",\"strict\":";
  out += tool.strict ? (*tool.strict ? "true" : "false") : "null";
  out += prompt.deferred ? "},\"defer_loading\":true}" : "}}";
  return out;
}

Refusal ConvertStrictParameters(const BodyTool& tool, const std::string& path,
                                json::value* parameters) {
  const json::value any_object = {{"type", "object"}};
  auto strict = TransformStrictSchema(tool.parameters ? *tool.parameters : any_object,
                                      StrictUse::kToolParameters);
  if (!strict) return Refuse(path, strict.error(), "invalid_schema");
  *parameters = std::move(*strict);
  return std::nullopt;
}

Refusal ConvertPlainParameters(const BodyTool& tool, const std::string& name,
                               const std::string& path, json::value* parameters) {
  if (tool.parameters == nullptr) {
    parameters->emplace_object();
    return std::nullopt;
  }
  std::string fault;
  if (auto invalid = CheckJsonSchema(*tool.parameters)) {
    fault = *invalid;
  } else {
    const json::value* type =
        tool.parameters->is_object() ? tool.parameters->get_object().if_contains("type") : nullptr;
    if (type == nullptr || !type->is_string() || type->get_string() != "object") {
      fault = fmt::format("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.",
                          type == nullptr ? "null" : CompactJson(*type));
    }
  }
  if (!fault.empty()) {
    return Refuse(path, fmt::format("Invalid schema for function '{}': {}", name, fault),
                  "invalid_schema");
  }
  *parameters = *tool.parameters;
  return std::nullopt;
}

Refusal ConvertTool(const BodyTool& tool, PromptForm form, ConvertedTool* converted) {
  const std::string& path = tool.parameters_path;
  converted->prompt.name = FullName(tool);
  converted->prompt.resume_behind = tool.resume_behind;
  converted->prompt.deferred = tool.deferred && form == PromptForm::kV41;
  converted->prompt.description = tool.description.value_or("");
  if (tool.parameters != nullptr) {
    if (auto too_large = CheckSchemaSize(*tool.parameters)) {
      return Refuse(
          path,
          fmt::format("Invalid schema for function '{}': {}", converted->prompt.name, *too_large),
          "invalid_schema");
    }
  }
  json::value parameters;
  Refusal refusal = tool.strict.value_or(false)
                        ? ConvertStrictParameters(tool, path, &parameters)
                        : ConvertPlainParameters(tool, converted->prompt.name, path, &parameters);
  if (refusal) return refusal;
  converted->prompt.parameters_json = JsonForPrompt(form, parameters);
  converted->constraint_json = ConstraintJson(tool, converted->prompt, CompactJson(parameters));
  return std::nullopt;
}

// Keeps the tools `keep` names. False if one of them is not declared; it is then in *missing.
bool FilterTools(const std::vector<std::string>& keep, std::vector<ConvertedTool>* tools,
                 std::string* missing) {
  for (const std::string& name : keep) {
    const bool declared = std::any_of(tools->begin(), tools->end(), [&](const ConvertedTool& t) {
      return t.prompt.name == name;
    });
    if (declared) continue;
    *missing = name;
    return false;
  }
  std::erase_if(*tools, [&](const ConvertedTool& tool) {
    return std::find(keep.begin(), keep.end(), tool.prompt.name) == keep.end();
  });
  return true;
}

Refusal ApplyChoice(const BodyToolChoice& choice, std::vector<ConvertedTool>* tools) {
  std::string missing;
  if (choice.mode == Mode::kNamed &&
      !FilterTools({JoinName(choice.name_namespace, std::nullopt, choice.name)}, tools, &missing)) {
    return Refuse("tool_choice", fmt::format("Invalid value for 'tool_call': no function named "
                                             "'{}' was specified in the 'tools' parameter.",
                                             missing));
  }
  if (choice.restricts_tools && !FilterTools(choice.allowed, tools, &missing)) {
    return Refuse(
        "tool_choice.allowed_tools.tools",
        fmt::format("No function named '{}' was specified in the 'tools' parameter.", missing));
  }
  return std::nullopt;
}

bool HasCalls(const ChatBody& body) {
  return std::any_of(body.messages.begin(), body.messages.end(),
                     [](const BodyMessage& message) { return !message.calls.empty(); });
}

Refusal CheckPrefix(const ChatBody& body, const ChatRequest& request) {
  if (!request.conversation.continues_last_turn()) return std::nullopt;
  if (body.response_format && body.response_format->kind == ResponseFormat::kJsonObject) {
    return Refuse("response_format", "response_format json_object should not be used with prefix");
  }
  if (body.tools.empty() && !HasCalls(body)) return std::nullopt;
  return Refuse("tools", "Function call should not be used with prefix");
}

void SetToolConstraint(std::vector<ConvertedTool> tools, bool forced, ChatRequest* request) {
  OutputConstraint constraint;
  constraint.kind = forced ? ConstraintKind::kToolCallRequired : ConstraintKind::kToolCall;
  constraint.path = "tools";
  constraint.schema = "[";
  for (ConvertedTool& tool : tools) {
    if (constraint.schema.size() > 1) constraint.schema += ',';
    constraint.schema += tool.constraint_json;
    request->tool_names.push_back(tool.prompt.name);
    request->conversation.tools.push_back(std::move(tool.prompt));
  }
  constraint.schema += ']';
  request->constraint = std::move(constraint);
}

}  // namespace

Refusal CheckToolName(const std::string& name, const std::string& path) {
  if (name.empty()) {
    return Refuse(path, fmt::format("Invalid '{}': empty string. Expected a string with minimum "
                                    "length 1, but got an empty string instead.",
                                    path));
  }
  if (!std::all_of(name.begin(), name.end(), IsNameChar)) {
    return Refuse(path, fmt::format("Invalid '{}': string does not match pattern. Expected a "
                                    "string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
                                    path));
  }
  return std::nullopt;
}

Refusal CheckToolNames(const ChatBody& body, const ChatRequestOptions& options) {
  if (body.tool_fault) return body.tool_fault;
  for (size_t i = 0; i < body.tools.size(); ++i) {
    if (Refusal refusal = CheckToolName(body.tools[i].name, body.tools[i].name_path)) {
      return refusal;
    }
    if (Refusal refusal = CheckNamespace(body.tools[i], i)) return refusal;
  }
  if (body.tools.size() > options.max_tools) {
    return Refuse("tools", fmt::format("Invalid 'tools': array too long. Expected an array with "
                                       "maximum length {}, but got {} tools.",
                                       options.max_tools, body.tools.size()));
  }
  return std::nullopt;
}

Refusal ConvertTools(const ChatBody& body, const ChatRequestOptions& options,
                     ChatRequest* request) {
  const BodyToolChoice choice = body.tool_choice.value_or(BodyToolChoice{});
  request->parallel_tool_calls = body.parallel_tool_calls.value_or(true);
  request->tool_choice = choice.mode == Mode::kNone ? ToolChoice::kNone : ToolChoice::kAuto;
  if (body.tools.empty() || choice.mode == Mode::kNone) return CheckPrefix(body, *request);

  std::vector<ConvertedTool> tools;
  std::unordered_set<std::string> names;
  for (const BodyTool& tool : body.tools) {
    if (!names.insert(FullName(tool)).second) {
      return Refuse(tool.name_path, "Tool names must be unique.");
    }
    if (Refusal refusal = ConvertTool(tool, request->conversation.form, &tools.emplace_back())) {
      return refusal;
    }
  }
  if (Refusal refusal = ApplyChoice(choice, &tools)) return refusal;

  const bool forced = choice.mode == Mode::kRequired || choice.mode == Mode::kNamed;
  Conversation& conversation = request->conversation;
  if (forced && conversation.thinking && !options.forced_tools_in_thinking) {
    return Refuse("tool_choice", "Thinking mode does not support this tool_choice",
                  "unsupported_parameter");
  }
  if (Refusal refusal = CheckPrefix(body, *request)) return refusal;

  if (choice.mode == Mode::kRequired) request->tool_choice = ToolChoice::kRequired;
  if (choice.mode == Mode::kNamed) {
    request->tool_choice = ToolChoice::kNamed;
    request->forced_tool = tools.front().prompt.name;
  }
  // With reasoning in front of the calls, the grammar opens the block instead of the prompt.
  const bool is_any = choice.mode == Mode::kAny;
  request->force_calls_after_reasoning = is_any || (forced && conversation.thinking);
  const bool opens_block = forced && !conversation.thinking;
  conversation.tool_mode = opens_block ? ToolMode::kForced : ToolMode::kAuto;
  request->parsing.parse_tool_calls = true;
  request->parsing.starts_in_tool_calls = opens_block;
  SetToolConstraint(std::move(tools), forced || is_any, request);
  return std::nullopt;
}

Refusal ConvertStrictTools(const ChatBody& body, ChatRequest* request) {
  if (request->conversation.tool_mode == ToolMode::kNone) return std::nullopt;
  const auto num_strict =
      std::count_if(body.tools.begin(), body.tools.end(),
                    [](const BodyTool& tool) { return tool.strict.value_or(false); });
  if (num_strict == 0) return std::nullopt;
  if (num_strict != std::ssize(body.tools)) {
    return Refuse("tools", "Cannot use strict tool with non-strict tool in the same request");
  }
  if (body.response_format) {
    return Refuse("response_format", "response_format should not be used with tools");
  }
  request->constraint->strict = true;
  return std::nullopt;
}

}  // namespace deepinfer
