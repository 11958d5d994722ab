// Messages of an Anthropic body -> turns of the conversation (encoding.md §5, api.md §10).
// Thread rule: pure functions.
#pragma once

#include "server/chat_convert.h"
#include "server/messages_body.h"

namespace deepinfer {

// Fills turns and images, in the order of the messages and not yet normalised. Tools that become
// visible on the way are named in SystemTurn::added_tools, the rest of them is empty.
Refusal ConvertMessagesTurns(const MessagesBody& body, const ChatRequestOptions& options,
                             ChatRequest* request);

}  // namespace deepinfer
