// POST /v1/responses: body -> the same request every dialect ends in, and what its answer repeats
// (api.md §9).
// Thread rule: pure functions of their arguments.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "server/chat_request.h"

namespace deepinfer {

enum class ResponsesToolKind : unsigned char { kFunction, kCustom, kSearch };

// A tool whose calls are not written as a plain function of the same name.
struct ResponsesTool {
  ResponsesToolKind kind = ResponsesToolKind::kFunction;
  std::string name;         // as the client knows it
  std::string name_space;   // "": none
  bool is_declared = true;  // in `tools`; off: a tool search found it
};

struct ResponsesRequest {
  ChatRequest common;
  std::map<std::string, ResponsesTool, std::less<>> tools;  // by name in the prompt
  // Members of the response object that repeat the request: JSON text without the braces.
  std::string echo_json;
};

// Errors as for ParseChatRequest.
ApiResult<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                  const ChatRequestOptions& options);

}  // namespace deepinfer
