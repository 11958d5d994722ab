#include "server/messages_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "server/image_url.h"
#include "server/messages_pairing.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

using Kind = MessagesBlock::Kind;
using Role = MessagesMessage::Role;

constexpr std::string_view kUnsupportedImageText = "[Unsupported Image]";
constexpr std::string_view kHttpScheme = "http";

std::string MessagePath(size_t index) { return "messages." + std::to_string(index); }

bool IsEmptyText(const UserPart& part) {
  const auto* text = std::get_if<ContentPart>(&part);
  return text != nullptr && !text->is_image() && text->text.empty();
}

bool HasText(const UserPart& part) {
  return std::holds_alternative<ContentPart>(part) && !IsEmptyText(part);
}

// Turns that will be one.
void DropEmptyTextsOf(const std::vector<UserTurn*>& run) {
  bool may_keep_one = std::none_of(run.begin(), run.end(), [](const UserTurn* turn) {
    return std::any_of(turn->parts.begin(), turn->parts.end(), HasText);
  });
  for (UserTurn* turn : run) {
    std::erase_if(turn->parts, [&](const UserPart& part) {
      return IsEmptyText(part) && !std::exchange(may_keep_one, false);
    });
  }
}

class TurnBuilder {
 public:
  TurnBuilder(const MessagesBody& body, const ChatRequestOptions& options, ChatRequest* request)
      : body_(body),
        options_(options),
        request_(request),
        is_v4_(request->conversation.form == PromptForm::kV4) {}

  Refusal Build();

 private:
  std::vector<Turn>& Turns() { return request_->conversation.turns; }

  void AddSystemField();
  void DropEmptyTexts();
  Refusal AddUser(const MessagesMessage& message);
  Refusal AddAssistant(const MessagesMessage& message);
  Refusal AddSystem(const MessagesMessage& message);
  void AddSystemText(std::vector<ContentPart> parts, std::vector<Tool> added);

  // Text, document and image blocks. `source_path` names the image in the image list.
  Refusal AddPart(const MessagesBlock& block, const std::string& source_path,
                  const std::string& error_path, std::vector<ContentPart>* parts);
  Refusal AddImage(const MessagesBlock& block, const std::string& source_path,
                   const std::string& error_path, std::vector<ContentPart>* parts);
  Refusal AddResult(const MessagesBlock& block, UserTurn* turn, std::vector<Tool>* added);
  Refusal RefusePlace(const MessagesBlock& block) const;
  Refusal CheckReference(const std::string& name, std::string message) const;
  Refusal CheckPassback() const;

  const MessagesBody& body_;
  const ChatRequestOptions& options_;
  ChatRequest* request_;
  const bool is_v4_;
  ToolPairing pairing_;
  size_t message_ = 0;  // the one being converted
  size_t block_ = 0;
};

Refusal TurnBuilder::Build() {
  if (body_.messages.empty()) {
    return Refuse("messages", "messages: at least one message is required",
                  "missing_required_parameter");
  }
  if (body_.messages.size() > options_.max_messages) {
    return Refuse("messages", fmt::format("Too many messages: at most {}.", options_.max_messages));
  }
  AddSystemField();
  for (message_ = 0; message_ < body_.messages.size(); ++message_) {
    const MessagesMessage& message = body_.messages[message_];
    if (message.blocks.empty() && message.role != Role::kSystem) {
      return Refuse(fmt::format("messages[{}].content", message_),
                    MessagePath(message_) + ": all messages must have non-empty content");
    }
    if (message.role != Role::kUser) {
      if (Refusal refusal = pairing_.OnOther(message_)) return refusal;
    }
    Refusal refusal = message.role == Role::kUser        ? AddUser(message)
                      : message.role == Role::kAssistant ? AddAssistant(message)
                                                         : AddSystem(message);
    if (refusal) return refusal;
  }
  if (Refusal refusal = pairing_.OnEnd()) return refusal;
  if (is_v4_) DropEmptyTexts();
  if (options_.reasoning_passback == ReasoningPassback::kReject &&
      request_->conversation.thinking) {
    if (Refusal refusal = CheckPassback()) return refusal;
  }
  request_->conversation.resume_behind_last_turn = body_.marks_end;
  auto* last = std::get_if<AssistantTurn>(&Turns().back());
  if (options_.messages_prefill && last != nullptr) last->unfinished = true;
  return std::nullopt;
}

// A field without text is a turn too.
void TurnBuilder::AddSystemField() {
  if (!body_.has_system) return;
  SystemTurn turn;
  for (const MessagesBlock& block : body_.system) {
    turn.parts.push_back(ContentPart::Text(block.text));
    turn.parts.back().resume_behind = block.marked;
  }
  Turns().push_back(std::move(turn));
}

// The older form joins the texts of user messages in a row that are not empty; where all are, one
// empty text is left.
void TurnBuilder::DropEmptyTexts() {
  std::vector<UserTurn*> run;
  for (Turn& turn : Turns()) {
    if (auto* user = std::get_if<UserTurn>(&turn)) {
      run.push_back(user);
    } else {
      DropEmptyTextsOf(std::exchange(run, {}));
    }
  }
  DropEmptyTextsOf(run);
}

Refusal TurnBuilder::AddUser(const MessagesMessage& message) {
  UserTurn turn;
  std::vector<Tool> added;
  pairing_.OnUserMessage();
  for (block_ = 0; block_ < message.blocks.size(); ++block_) {
    const MessagesBlock& block = message.blocks[block_];
    if (block.kind == Kind::kToolResult) {
      if (Refusal refusal = AddResult(block, &turn, &added)) return refusal;
      continue;
    }
    if (Refusal refusal = RefusePlace(block)) return refusal;
    if (Refusal refusal = pairing_.OnOther(message_)) return refusal;
    const std::string path = fmt::format("messages.{}.content[{}]", message_, block_);
    std::vector<ContentPart> parts;
    if (Refusal refusal = AddPart(block, path, path, &parts)) return refusal;
    for (ContentPart& part : parts) turn.parts.emplace_back(std::move(part));
  }
  if (Refusal refusal = pairing_.OnEnd()) return refusal;
  Turns().push_back(std::move(turn));
  if (!added.empty()) AddSystemText({}, std::move(added));
  return std::nullopt;
}

Refusal TurnBuilder::AddAssistant(const MessagesMessage& message) {
  AssistantTurn turn;
  const auto append = [](std::string_view text, bool has_more, std::string* out) {
    if (has_more) out->append("\n\n");
    out->append(text);
  };
  bool has_reasoning = false;
  for (block_ = 0; block_ < message.blocks.size(); ++block_) {
    const MessagesBlock& block = message.blocks[block_];
    turn.resume_behind |= block.marked;
    switch (block.kind) {
      case Kind::kThinking:
        append(block.text, std::exchange(has_reasoning, true), &turn.reasoning);
        break;
      case Kind::kRedactedThinking:
        break;
      case Kind::kToolUse:
        if (Refusal refusal = pairing_.OnCall(block.id, message_, block_)) return refusal;
        turn.calls.push_back(
            {block.id, block.name, JsonForPrompt(request_->conversation.form, *block.input)});
        break;
      case Kind::kText:
      case Kind::kDocument:
      case Kind::kImage: {
        if (Refusal refusal = pairing_.OnTextBehindCalls(message_, block_)) return refusal;
        const std::string path = fmt::format("messages.{}.content[{}]", message_, block_);
        std::vector<ContentPart> parts;
        if (Refusal refusal = AddPart(block, path, path, &parts)) return refusal;
        if (block.kind == Kind::kImage && !is_v4_) {
          return Refuse(fmt::format("messages[{}].content[{}]", message_, block_),
                        "Image in assistant message is unsupported", "unsupported_parameter");
        }
        // Empty texts in front of the first one with text leave nothing.
        append(parts.front().text, !turn.text.empty(), &turn.text);
        break;
      }
      default:
        if (Refusal refusal = RefusePlace(block)) return refusal;
    }
  }
  Turns().push_back(std::move(turn));
  return std::nullopt;
}

Refusal TurnBuilder::AddSystem(const MessagesMessage& message) {
  std::vector<ContentPart> parts;
  std::vector<Tool> added;
  for (block_ = 0; block_ < message.blocks.size(); ++block_) {
    const MessagesBlock& block = message.blocks[block_];
    if (block.kind == Kind::kToolAddition) {
      if (Refusal refusal = CheckReference(
              block.text, fmt::format("messages.{}.content.{}: `tool_addition` references unknown "
                                      "tool '{}'",
                                      message_, block_, block.text))) {
        return refusal;
      }
      added.emplace_back().name = block.text;
      continue;
    }
    if (Refusal refusal = RefusePlace(block)) return refusal;
    if (Refusal refusal =
            AddPart(block, MessagePath(message_),
                    fmt::format("messages.{}.content[{}]", message_, block_), &parts)) {
      return refusal;
    }
  }
  AddSystemText(std::move(parts), std::move(added));
  return std::nullopt;
}

// The older form has one system text, in front; what comes later is a note in the user turn.
void TurnBuilder::AddSystemText(std::vector<ContentPart> parts, std::vector<Tool> added) {
  if (!is_v4_) {
    Turns().push_back(SystemTurn{std::move(parts), std::move(added)});
    return;
  }
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? "\n\n" : "") + parts[i].text;
  if (text.empty()) return;
  UserTurn note;
  note.parts.emplace_back(ContentPart::Text("<system-reminder>\n" + text + "\n</system-reminder>"));
  Turns().push_back(std::move(note));
}

Refusal TurnBuilder::AddPart(const MessagesBlock& block, const std::string& source_path,
                             const std::string& error_path, std::vector<ContentPart>* parts) {
  switch (block.kind) {
    case Kind::kDocument:
      parts->push_back(
          ContentPart::Text(fmt::format("[Unsupported document type: {}]", block.text)));
      break;
    case Kind::kImage:
      if (Refusal refusal = AddImage(block, source_path, error_path, parts)) return refusal;
      break;
    default:
      parts->push_back(ContentPart::Text(block.text));
  }
  parts->back().resume_behind = block.marked;
  return std::nullopt;
}

Refusal TurnBuilder::AddImage(const MessagesBlock& block, const std::string& source_path,
                              const std::string& error_path, std::vector<ContentPart>* parts) {
  if (is_v4_) {
    parts->push_back(ContentPart::Text(std::string(kUnsupportedImageText)));
    return std::nullopt;
  }
  std::string fault;
  ImageSource source;
  source.path = source_path;
  if (block.is_file_image) {
    fault = "file_id is not supported. Pass the image as a base64 data url instead.";
  } else if (!block.media_type.empty()) {
    source.is_data_url = true;
    source.url = fmt::format("data:{};base64,{}", block.media_type, block.text);
    if (!IsPaddedBase64(block.text)) fault = "base64 decode error";
  } else {
    source.url = block.text;
    if (!source.url.starts_with(kHttpScheme))
      fault = fmt::format("invalid url: \"{}\"", block.text);
  }
  if (!fault.empty()) {
    return Refuse(fmt::format("messages[{}].content[{}]", message_, block_),
                  error_path + ": " + fault);
  }
  if (request_->images.size() == options_.max_images) {
    return Refuse("messages", fmt::format("Too many images: at most {}.", options_.max_images));
  }
  parts->push_back(ContentPart::Image(static_cast<int32_t>(request_->images.size())));
  request_->images.push_back(std::move(source));
  return std::nullopt;
}

Refusal TurnBuilder::AddResult(const MessagesBlock& block, UserTurn* turn,
                               std::vector<Tool>* added) {
  if (Refusal refusal = pairing_.OnResult(block.id, message_, block_)) return refusal;
  ToolResult result{block.id, {}, block.marked};
  const std::string path = fmt::format("messages.{}.content.{}.tool_result", message_, block_);
  for (size_t i = 0; i < block.content.size(); ++i) {
    const MessagesBlock& part = block.content[i];
    if (part.kind == Kind::kToolReference) {
      if (Refusal refusal = CheckReference(
              part.text, fmt::format("messages.{}.content.{}: tool reference '{}' not found in "
                                     "available tools",
                                     message_, block_, part.text))) {
        return refusal;
      }
      added->emplace_back().name = part.text;
    }
    if (Refusal refusal =
            AddPart(part, path, fmt::format("{}.content[{}]", path, i), &result.parts)) {
      return refusal;
    }
  }
  if (result.parts.empty()) result.parts.push_back(ContentPart::Text(""));
  turn->parts.emplace_back(std::move(result));
  return std::nullopt;
}

// A block that may not stand in a message of this role, or that the server would have to run.
Refusal TurnBuilder::RefusePlace(const MessagesBlock& block) const {
  const bool is_assistant = body_.messages[message_].role == Role::kAssistant;
  const auto refuse = [&](std::string_view name, std::string_view role) {
    return Refuse(
        fmt::format("messages[{}].content[{}]", message_, block_),
        fmt::format("messages.{}: `{}` blocks can only be in `{}` messages", message_, name, role));
  };
  switch (block.kind) {
    case Kind::kThinking:
    case Kind::kRedactedThinking:
      return Refuse(fmt::format("messages[{}].content[{}]", message_, block_),
                    fmt::format("messages.{}.content: thinking blocks may only be in `assistant` "
                                "messages",
                                message_));
    case Kind::kToolUse:
      return refuse("tool_use", "assistant");
    case Kind::kToolResult:
      return refuse("tool_result", "user");
    case Kind::kToolAddition:
      return refuse("tool_addition", "system");
    case Kind::kServerToolUse:
    case Kind::kServerToolResult:
      if (!is_assistant) {
        return refuse(block.kind == Kind::kServerToolUse ? "tool_use" : "web_search_tool_result",
                      "assistant");
      }
      if (options_.drop_server_tools) return std::nullopt;
      return Refuse(fmt::format("messages[{}].content[{}]", message_, block_),
                    "Unsupported content block: server tools are not supported",
                    "unsupported_parameter");
    default:
      return std::nullopt;
  }
}

Refusal TurnBuilder::CheckReference(const std::string& name, std::string message) const {
  for (const BodyTool& tool : body_.common.tools) {
    if (tool.name == name) return std::nullopt;
  }
  return Refuse(fmt::format("messages[{}].content[{}]", message_, block_), std::move(message));
}

// Thinking needs the reasoning of the turns behind the last user message that is more than results,
// if they called tools or tools are declared.
Refusal TurnBuilder::CheckPassback() const {
  const auto has = [](const MessagesMessage& message, Kind kind) {
    return std::any_of(message.blocks.begin(), message.blocks.end(),
                       [&](const MessagesBlock& block) { return block.kind == kind; });
  };
  for (size_t i = body_.messages.size(); i-- > 0;) {
    const MessagesMessage& message = body_.messages[i];
    const bool only_results =
        std::all_of(message.blocks.begin(), message.blocks.end(),
                    [](const MessagesBlock& block) { return block.kind == Kind::kToolResult; });
    if (message.role == Role::kUser && !only_results) break;
    if (message.role != Role::kAssistant || has(message, Kind::kThinking)) continue;
    if (!has(message, Kind::kToolUse) && body_.num_tools == 0) continue;
    return Refuse(fmt::format("messages[{}].content", i),
                  "The `content[].thinking` in the thinking mode must be passed back to the API.",
                  "missing_required_parameter");
  }
  return std::nullopt;
}

}  // namespace

Refusal ConvertMessagesTurns(const MessagesBody& body, const ChatRequestOptions& options,
                             ChatRequest* request) {
  return TurnBuilder(body, options, request).Build();
}

}  // namespace deepinfer
