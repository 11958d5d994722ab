// Which tool_use blocks of an Anthropic conversation still wait for their results (api.md §10).
// Thread rule: one object per request. Owner: the turn builder.
#pragma once

#include <string>
#include <vector>

#include "server/chat_convert.h"

namespace deepinfer {

// Every tool_use of an assistant message is answered by one tool_result at the start of the next
// user message. Indexes name messages and blocks in refusals.
class ToolPairing {
 public:
  // A message that is not a user message, or a block that is not a result.
  Refusal OnOther(size_t message_index) const;
  // A block of the assistant message that asks, behind its calls.
  Refusal OnTextBehindCalls(size_t message_index, size_t block_index) const;
  Refusal OnCall(const std::string& id, size_t message_index, size_t block_index);

  void OnUserMessage() { answered_.clear(); }
  Refusal OnResult(const std::string& id, size_t message_index, size_t block_index);

  // The end of a user message, or of all messages.
  Refusal OnEnd() const;

 private:
  Refusal Unanswered(const std::string& place) const;

  std::vector<std::string> open_;
  std::vector<std::string> answered_;  // by the current user message
  size_t asking_message_ = 0;
};

}  // namespace deepinfer
