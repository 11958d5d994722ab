// Input items of a Responses body -> turns of the conversation (encoding.md §5, api.md §9).
// Thread rule: pure functions.
#pragma once

#include "server/chat_convert.h"
#include "server/responses_body.h"

namespace deepinfer {

// Fills turns and images, in the order of the items and not yet normalised. Tools that a search
// found are named in SystemTurn::added_tools, the rest of them is empty.
Refusal ConvertResponsesTurns(const ResponsesBody& body, const ChatRequestOptions& options,
                              ChatRequest* request);

}  // namespace deepinfer
