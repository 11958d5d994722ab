#include "server/messages_pairing.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {

Refusal ToolPairing::OnOther(size_t message_index) const {
  if (open_.empty()) return std::nullopt;
  return Unanswered("messages." + std::to_string(message_index) + ": ");
}

Refusal ToolPairing::OnTextBehindCalls(size_t message_index, size_t block_index) const {
  if (open_.empty()) return std::nullopt;
  return Unanswered(fmt::format("messages.{}.{}: ", message_index, block_index));
}

Refusal ToolPairing::OnCall(const std::string& id, size_t message_index, size_t block_index) {
  if (std::find(open_.begin(), open_.end(), id) != open_.end()) {
    return Refuse(fmt::format("messages[{}].content[{}].id", message_index, block_index),
                  fmt::format("messages.{}.content.{}: `tool_use` ids must be unique",
                              message_index, block_index));
  }
  open_.push_back(id);
  asking_message_ = message_index;
  return std::nullopt;
}

Refusal ToolPairing::OnResult(const std::string& id, size_t message_index, size_t block_index) {
  const auto open = std::find(open_.begin(), open_.end(), id);
  if (open != open_.end()) {
    open_.erase(open);
    answered_.push_back(id);
    return std::nullopt;
  }
  const std::string param =
      fmt::format("messages[{}].content[{}].tool_use_id", message_index, block_index);
  if (std::find(answered_.begin(), answered_.end(), id) != answered_.end()) {
    return Refuse(param, fmt::format("messages.{}.content.{}: each tool_use must have a single "
                                     "result. Found multiple `tool_result` blocks with id: {}",
                                     message_index, block_index, id));
  }
  return Refuse(param, fmt::format("unexpected `messages.{}.content.{}: tool_use_id` found in "
                                   "`tool_result` blocks: {}. Each `tool_result` block must have a "
                                   "corresponding `tool_use` block in the previous message.",
                                   message_index, block_index, id));
}

Refusal ToolPairing::OnEnd() const {
  if (open_.empty()) return std::nullopt;
  return Unanswered("messages." + std::to_string(asking_message_) + ":");
}

Refusal ToolPairing::Unanswered(const std::string& place) const {
  return Refuse(
      "messages[" + std::to_string(asking_message_) + "]",
      fmt::format("{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. "
                  "Each `tool_use` block must have a corresponding `tool_result` block in the next "
                  "message.",
                  place, JoinTexts(open_, ", ")));
}

}  // namespace deepinfer
