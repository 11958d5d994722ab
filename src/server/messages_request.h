// POST /v1/messages: body -> the same request every dialect ends in (api.md §10).
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/chat_request.h"

namespace deepinfer {

// The cache_control marks of a request.
struct CacheMarks {
  int32_t count = 0;
  bool last_lives_1h = false;  // ttl of the last mark: "1h", else "5m"
};

struct MessagesRequest {
  ChatRequest common;
  CacheMarks cache_marks;
};

// Errors as for ParseChatRequest.
ApiResult<MessagesRequest> ParseMessagesRequest(std::string_view body,
                                                const ChatRequestOptions& options);

}  // namespace deepinfer
