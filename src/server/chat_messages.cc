#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "server/cache_controls.h"
#include "server/chat_convert.h"
#include "server/image_url.h"

namespace deepinfer {
namespace {

using Role = BodyMessage::Role;

constexpr std::string_view kUnsupportedImageText = "[Unsupported Image]";

std::string MessagePath(size_t index, std::string_view field = {}) {
  return field.empty() ? fmt::format("messages[{}]", index)
                       : fmt::format("messages[{}].{}", index, field);
}

// Each assistant turn with calls is followed by exactly one result per call, before anything else.
class CallPairing {
 public:
  // Before the message's own checks: is it where the calls before it allow it?
  Refusal OnMessage(const BodyMessage& message, size_t index) {
    if (message.role == Role::kTool) return OnResult(message, index);
    if (!open_.empty()) return Insufficient(index);
    answered_.clear();
    return std::nullopt;
  }

  // Behind them: the calls that now wait for results.
  Refusal OnCalls(const BodyMessage& message, size_t index) {
    for (const ToolCall& call : message.calls) {
      if (!open_.insert(call.id).second) return Duplicate(call.id, index, "tool_calls");
    }
    return std::nullopt;
  }

  Refusal OnEnd(size_t num_messages) const {
    return open_.empty() ? std::nullopt : Insufficient(num_messages);
  }

 private:
  Refusal OnResult(const BodyMessage& message, size_t index) {
    if (open_.empty()) {
      return Refuse(MessagePath(index, "role"),
                    "Messages with role 'tool' must be a response to a preceding message with "
                    "'tool_calls'");
    }
    if (open_.erase(message.tool_call_id) > 0) {
      answered_.insert(message.tool_call_id);
      return std::nullopt;
    }
    if (answered_.count(message.tool_call_id) > 0) {
      return Duplicate(message.tool_call_id, index, "tool_call_id");
    }
    return Refuse(MessagePath(index, "tool_call_id"),
                  fmt::format("An assistant message with 'tool_calls' must be followed by tool "
                              "messages responding to each 'tool_call_id', The following "
                              "tool_call_ids did not have response messages: {}",
                              message.tool_call_id));
  }

  static Refusal Duplicate(const std::string& id, size_t index, std::string_view field) {
    return Refuse(
        MessagePath(index, field),
        fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", id, index));
  }

  static Refusal Insufficient(size_t index) {
    return Refuse(MessagePath(index),
                  "An assistant message with 'tool_calls' must be followed by tool messages "
                  "responding to each 'tool_call_id'. (insufficient tool messages following "
                  "tool_calls message)");
  }

  std::unordered_set<std::string> open_;
  std::unordered_set<std::string> answered_;
};

bool HasImage(const BodyMessage& message) {
  return std::any_of(message.parts.begin(), message.parts.end(),
                     [](const BodyPart& part) { return part.kind != BodyPart::Kind::kText; });
}

Refusal CheckAssistant(const BodyMessage& message, size_t index) {
  if (message.has_content || !message.calls.empty()) return std::nullopt;
  return Refuse(MessagePath(index), "Invalid assistant message: content or tool_calls must be set");
}

Refusal CheckPrefixPlace(const ChatBody& body) {
  for (size_t i = 0; i + 1 < body.messages.size(); ++i) {
    if (!body.messages[i].prefix) continue;
    return Refuse(MessagePath(i, "prefix"),
                  "Invalid completion message: prefix set true with message which is not final "
                  "message or message role is not assistant");
  }
  return std::nullopt;
}

Refusal CheckCacheBreakpoints(const ChatBody& body) {
  int32_t count = 0;
  for (size_t i = 0; i < body.messages.size(); ++i) {
    const std::vector<BodyPart>& parts = body.messages[i].parts;
    for (size_t k = 0; k < parts.size(); ++k) {
      if (!parts[k].cache_breakpoint || ++count <= kMaxCacheMarks) continue;
      return Refuse(
          fmt::format("messages[{}].content[{}].prompt_cache_breakpoint", i, k),
          fmt::format("Too many cache breakpoints: at most {} per request.", kMaxCacheMarks));
    }
  }
  return std::nullopt;
}

Refusal CheckCounts(const ChatBody& body, const ChatRequestOptions& options) {
  if (body.messages.empty()) {
    return Refuse("messages", "Empty input messages", "missing_required_parameter");
  }
  size_t num_parts = 0;
  for (const BodyMessage& message : body.messages) num_parts += message.parts.size();
  if (body.messages.size() > options.max_messages || num_parts > options.max_parts) {
    return Refuse("messages", fmt::format("Too many messages: at most {} messages and {} parts.",
                                          options.max_messages, options.max_parts));
  }
  return std::nullopt;
}

// Thinking needs the reasoning of the turns that are still part of the current answer: those
// behind the last user message, if they called tools or tools are declared.
Refusal CheckPassback(const ChatBody& body) {
  for (size_t i = body.messages.size(); i-- > 0;) {
    const BodyMessage& message = body.messages[i];
    if (message.role == Role::kUser) break;
    if (message.role != Role::kAssistant || message.reasoning) continue;
    if (message.calls.empty() && body.tools.empty()) continue;
    return Refuse(MessagePath(i, "reasoning_content"),
                  "The `reasoning_content` in the thinking mode must be passed back to the API.",
                  "missing_required_parameter");
  }
  return std::nullopt;
}

class TurnBuilder {
 public:
  TurnBuilder(const ChatRequestOptions& options, ChatRequest* request)
      : options_(options),
        request_(request),
        images_are_text_(request->conversation.form == PromptForm::kV4) {}

  Refusal Add(const BodyMessage& message, size_t index) {
    if (Refusal refusal = CheckFiles(message, index)) return refusal;
    if (message.role == Role::kAssistant && HasImage(message) && !images_are_text_) {
      return Refuse(MessagePath(index, "content"), "Image in assistant message is not supported",
                    "unsupported_parameter");
    }
    std::vector<ContentPart> parts;
    for (size_t i = 0; i < message.parts.size(); ++i) {
      if (Refusal refusal = AddPart(message.parts[i], index, i, &parts)) return refusal;
    }
    // A message without parts still takes its place between the separators.
    if (parts.empty()) parts.push_back(ContentPart::Text(""));
    Turns().push_back(MakeTurn(message, std::move(parts)));
    if (message.role == Role::kSystem) DropEmptySystem();
    return std::nullopt;
  }

 private:
  std::vector<Turn>& Turns() { return request_->conversation.turns; }

  Turn MakeTurn(const BodyMessage& message, std::vector<ContentPart> parts) const {
    switch (message.role) {
      case Role::kSystem:
        return SystemTurn{std::move(parts)};
      case Role::kReminder:
        return ReminderTurn{std::move(parts.front().text)};
      case Role::kTool: {
        UserTurn turn;
        turn.parts.emplace_back(ToolResult{message.tool_call_id, std::move(parts)});
        return turn;
      }
      case Role::kUser: {
        UserTurn turn;
        for (ContentPart& part : parts) turn.parts.emplace_back(std::move(part));
        return turn;
      }
      case Role::kAssistant:
        break;
    }
    AssistantTurn turn;
    turn.reasoning = message.reasoning.value_or("");
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) turn.text += "\n\n";
      turn.text += parts[i].text;
      turn.resume_behind |= parts[i].resume_behind;
    }
    turn.calls = message.calls;
    turn.unfinished = message.prefix;
    return turn;
  }

  void DropEmptySystem() {
    const auto& parts = std::get<SystemTurn>(Turns().back()).parts;
    if (parts.size() == 1 && !parts[0].is_image() && parts[0].text.empty()) Turns().pop_back();
  }

  Refusal AddPart(const BodyPart& part, size_t message_index, size_t part_index,
                  std::vector<ContentPart>* parts) {
    if (part.kind == BodyPart::Kind::kText) {
      parts->push_back(ContentPart::Text(part.text));
    } else if (images_are_text_) {
      parts->push_back(ContentPart::Text(std::string(kUnsupportedImageText)));
    } else if (Refusal refusal = AddImage(part, message_index, part_index, parts)) {
      return refusal;
    }
    parts->back().resume_behind = part.cache_breakpoint;
    return std::nullopt;
  }

  Refusal AddImage(const BodyPart& part, size_t message_index, size_t part_index,
                   std::vector<ContentPart>* parts) {
    ImageSource source;
    source.detail = part.detail;
    source.path = fmt::format(".messages[{}]", message_index);
    source.url = part.kind == BodyPart::Kind::kFile ? *part.file_data : part.text;
    const CheckedImageUrl checked =
        CheckImageUrl(source.url, part.kind == BodyPart::Kind::kFile ? ImageField::kFileData
                                                                     : ImageField::kImageUrl);
    if (!checked.fault.empty()) return RefusePart(message_index, part_index, checked.fault);
    source.is_data_url = checked.is_data_url;
    if (request_->images.size() == options_.max_images) {
      return Refuse("messages", fmt::format("Too many images: at most {}.", options_.max_images));
    }
    parts->push_back(ContentPart::Image(static_cast<int32_t>(request_->images.size())));
    request_->images.push_back(std::move(source));
    return std::nullopt;
  }

  // Files come before all other checks of their message.
  Refusal CheckFiles(const BodyMessage& message, size_t index) const {
    if (images_are_text_) return std::nullopt;
    for (size_t i = 0; i < message.parts.size(); ++i) {
      const BodyPart& part = message.parts[i];
      if (part.kind != BodyPart::Kind::kFile) continue;
      const std::string fault = FileFault(part);
      if (!fault.empty()) return RefusePart(index, i, fault);
    }
    return std::nullopt;
  }

  static std::string FileFault(const BodyPart& part) {
    if (part.file_id && part.file_data) return "file cannot have both file_id and file_data";
    if (part.file_id) {
      return "file_id is not supported. Pass the image as a base64 data url instead.";
    }
    if (!part.file_data) return "file must have a file_id or file_data";
    return CheckImageUrl(*part.file_data, ImageField::kFileData).fault;
  }

  static Refusal RefusePart(size_t message_index, size_t part_index, std::string_view fault) {
    return Refuse(fmt::format("messages[{}].content[{}]", message_index, part_index),
                  fmt::format(".messages[{}]: {}", message_index, fault));
  }

  const ChatRequestOptions& options_;
  ChatRequest* request_;
  bool images_are_text_;
};

bool ContainsJsonWord(const BodyMessage& message) {
  constexpr std::string_view kWord = "json";
  return std::any_of(message.parts.begin(), message.parts.end(), [&](const BodyPart& part) {
    if (part.kind != BodyPart::Kind::kText) return false;
    const auto found = std::search(part.text.begin(), part.text.end(), kWord.begin(), kWord.end(),
                                   [](char a, char b) { return (a | 0x20) == b; });
    return found != part.text.end();
  });
}

}  // namespace

Refusal ConvertMessages(const ChatBody& body, const ChatRequestOptions& options,
                        ChatRequest* request) {
  if (Refusal refusal = CheckCounts(body, options)) return refusal;
  if (Refusal refusal = CheckCacheBreakpoints(body)) return refusal;
  CallPairing pairing;
  TurnBuilder builder(options, request);
  for (size_t i = 0; i < body.messages.size(); ++i) {
    const BodyMessage& message = body.messages[i];
    if (Refusal refusal = pairing.OnMessage(message, i)) return refusal;
    if (message.role == Role::kAssistant) {
      if (Refusal refusal = CheckAssistant(message, i)) return refusal;
    }
    if (Refusal refusal = builder.Add(message, i)) return refusal;
    if (Refusal refusal = pairing.OnCalls(message, i)) return refusal;
  }
  if (Refusal refusal = pairing.OnEnd(body.messages.size())) return refusal;
  if (Refusal refusal = CheckPrefixPlace(body)) return refusal;
  if (body.continue_final_message) {
    if (body.messages.back().role != Role::kAssistant) {
      return Refuse("continue_final_message",
                    "continue_final_message needs an assistant message at the end");
    }
    std::get<AssistantTurn>(request->conversation.turns.back()).unfinished = true;
  }
  if (options.reasoning_passback == ReasoningPassback::kReject && request->conversation.thinking) {
    if (Refusal refusal = CheckPassback(body)) return refusal;
  }
  NormalizeTurns(&request->conversation);
  return std::nullopt;
}

Refusal CheckJsonWord(const ChatBody& body) {
  if (!body.response_format || body.response_format->kind != ResponseFormat::kJsonObject) {
    return std::nullopt;
  }
  if (std::any_of(body.messages.begin(), body.messages.end(), ContainsJsonWord)) {
    return std::nullopt;
  }
  return Refuse("messages",
                "Prompt must contain the word 'json' in some form to use 'response_format' of "
                "type 'json_object'.");
}

}  // namespace deepinfer
