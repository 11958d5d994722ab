#include <fmt/format.h>

#include "server/chat_body.h"
#include "server/field_reader.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

const std::vector<std::string_view>& RoleNames() {
  static const std::vector<std::string_view> kNames = {"system",    "developer", "user",
                                                       "assistant", "tool",      "latest_reminder"};
  return kNames;
}

BodyMessage::Role RoleOf(size_t name_index) {
  using Role = BodyMessage::Role;
  constexpr Role kRoles[] = {Role::kSystem,    Role::kSystem, Role::kUser,
                             Role::kAssistant, Role::kTool,   Role::kReminder};
  return kRoles[name_index];
}

BodyPart ReadPart(const json::value& value, const std::string& path, ReadState* state) {
  static const std::vector<std::string_view> kTypes = {"text", "image_url", "file"};
  static const std::vector<std::string_view> kDetails = {"low", "high", "original", "auto"};
  ObjectReader part(state, value, path);
  BodyPart result;
  switch (part.RequiredOneOf("type", kTypes)) {
    case 0:
      result.text = part.RequiredString("text");
      break;
    case 1: {
      result.kind = BodyPart::Kind::kImage;
      const json::value* image = part.Require("image_url");
      if (image == nullptr) break;
      ObjectReader source(state, *image, part.PathOf("image_url"));
      result.text = source.RequiredString("url");
      if (auto detail = source.OneOf("detail", kDetails)) {
        result.detail = static_cast<ImageDetail>(*detail);
      }
      break;
    }
    default:
      result.kind = BodyPart::Kind::kFile;
      result.file_id = part.String("file_id");
      result.file_data = part.String("file_data");
  }
  result.cache_breakpoint = ReadCacheBreakpoint(&part);
  return result;
}

// Null is legal only where `nullable`: for assistant messages.
void ReadContent(ObjectReader* message, bool nullable, ReadState* state, BodyMessage* result) {
  const json::value* content = nullable ? message->Find("content") : message->Require("content");
  if (content == nullptr) return;
  result->has_content = true;
  if (content->is_string()) {
    result->parts.push_back(
        {BodyPart::Kind::kText, std::string(content->get_string()), {}, {}, {}});
    return;
  }
  if (!content->is_array()) {
    message->WrongType("content", "a string or an array");
    return;
  }
  const json::array& parts = content->get_array();
  result->parts.reserve(parts.size());
  for (size_t i = 0; i < parts.size() && !state->error; ++i) {
    result->parts.push_back(ReadPart(parts[i], IndexPath(message->PathOf("content"), i), state));
  }
}

ToolCall ReadCall(const json::value& value, const std::string& path, ReadState* state) {
  static const std::vector<std::string_view> kTypes = {"function"};
  ObjectReader call(state, value, path);
  ToolCall result;
  result.id = call.RequiredString("id");
  call.RequiredOneOf("type", kTypes);
  std::optional<std::string> outer = call.String("namespace");
  const json::value* function_value = call.Require("function");
  if (function_value == nullptr) return result;
  ObjectReader function(state, *function_value, call.PathOf("function"));
  result.name = function.RequiredString("name");
  result.arguments = function.RequiredString("arguments");
  std::optional<std::string> inner = function.String("namespace");
  if (!outer) outer = std::move(inner);
  if (outer && !outer->empty()) result.name = *outer + "::" + result.name;
  return result;
}

void ReadAssistantFields(ObjectReader* message, ReadState* state, BodyMessage* result) {
  ReadContent(message, true, state, result);
  result->reasoning = message->String("reasoning_content");
  if (!result->reasoning) result->reasoning = message->String("reasoning");
  result->prefix = message->Bool("prefix").value_or(false);
  if (const json::array* calls = message->Array("tool_calls")) {
    for (size_t i = 0; i < calls->size() && !state->error; ++i) {
      result->calls.push_back(
          ReadCall((*calls)[i], IndexPath(message->PathOf("tool_calls"), i), state));
    }
  }
}

BodyMessage ReadMessage(const json::value& value, const std::string& path, ReadState* state) {
  ObjectReader message(state, value, path);
  BodyMessage result;
  const size_t role = message.RequiredOneOf("role", RoleNames());
  if (state->error) return result;
  result.role = RoleOf(role);
  result.is_developer = RoleNames()[role] == "developer";
  switch (result.role) {
    case BodyMessage::Role::kAssistant:
      ReadAssistantFields(&message, state, &result);
      break;
    case BodyMessage::Role::kReminder:
      result.has_content = true;
      result.parts.push_back(
          {BodyPart::Kind::kText, message.RequiredString("content"), {}, {}, {}});
      break;
    case BodyMessage::Role::kTool:
      ReadContent(&message, false, state, &result);
      result.tool_call_id = message.RequiredString("tool_call_id");
      break;
    case BodyMessage::Role::kSystem:
    case BodyMessage::Role::kUser:
      ReadContent(&message, false, state, &result);
      break;
  }
  if (result.role != BodyMessage::Role::kTool && result.role != BodyMessage::Role::kReminder) {
    message.String("name");
  }
  return result;
}

}  // namespace

bool ReadCacheBreakpoint(ObjectReader* part) {
  const json::value* value = part->Find("prompt_cache_breakpoint");
  if (value == nullptr || value->is_object()) return value != nullptr;
  if (!value->is_bool()) {
    part->WrongType("prompt_cache_breakpoint", "a boolean or an object");
    return false;
  }
  return value->get_bool();
}

void ReadMessages(ObjectReader* body, ReadState* state, std::vector<BodyMessage>* messages) {
  const json::value* value = body->Require("messages");
  if (value == nullptr) return;
  if (!value->is_array()) {
    body->WrongType("messages", "an array");
    return;
  }
  const json::array& array = value->get_array();
  messages->reserve(array.size());
  for (size_t i = 0; i < array.size() && !state->error; ++i) {
    messages->push_back(ReadMessage(array[i], IndexPath("messages", i), state));
  }
}

}  // namespace deepinfer
