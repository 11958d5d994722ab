#include "server/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "server/cache_controls.h"
#include "server/chat_convert.h"
#include "server/field_reader.h"
#include "server/json_body.h"
#include "server/messages_body.h"
#include "server/messages_turns.h"

namespace deepinfer {
namespace {

Refusal CheckServerTools(const MessagesBody& body) {
  if (body.server_tools.empty()) return std::nullopt;
  const std::string path = fmt::format("tools[{}]", body.server_tools.front());
  return Refuse(path, path + ": server tools are not supported", "unsupported_parameter");
}

Refusal CheckDeferredTools(const MessagesBody& body, const ChatRequest& request) {
  const std::vector<BodyTool>& tools = body.common.tools;
  const bool all_deferred =
      std::all_of(tools.begin(), tools.end(), [](const BodyTool& tool) { return tool.deferred; });
  if (request.conversation.form == PromptForm::kV41 && !tools.empty() && all_deferred) {
    return Refuse("tools",
                  "tools: at least one tool must have defer_loading=false. All tools cannot be "
                  "deferred.");
  }
  return std::nullopt;
}

Refusal CheckCacheMarks(const CacheMarks& marks) {
  if (marks.count <= kMaxCacheMarks) return std::nullopt;
  return Refuse("cache_control", fmt::format("A maximum of {} blocks with cache_control may be "
                                             "provided. Found {}.",
                                             kMaxCacheMarks, marks.count));
}

}  // namespace

ApiResult<MessagesRequest> ParseMessagesRequest(std::string_view body_text,
                                                const ChatRequestOptions& options) {
  ApiResult<JsonDocument> document = ParseJsonBody(body_text);
  if (!document) return tl::unexpected(std::move(document.error()));

  ReadState state;
  state.document = &*document;
  state.reject_duplicate_keys = options.reject_duplicate_keys;
  const MessagesBody body = ReadMessagesBody(document->root(), options, &state);
  if (state.error) return tl::unexpected(std::move(*state.error));

  MessagesRequest request;
  request.cache_marks = body.cache_marks;
  const TurnsStep convert_turns = [&](ChatRequest* target) -> Refusal {
    if (Refusal refusal = CheckCacheMarks(body.cache_marks)) return refusal;
    if (Refusal refusal = CheckServerTools(body)) return refusal;
    if (Refusal refusal = ConvertMessagesTurns(body, options, target)) return refusal;
    return CheckDeferredTools(body, *target);
  };
  if (Refusal refusal = ConvertBody(body.common, options, convert_turns, &request.common)) {
    return tl::unexpected(std::move(*refusal));
  }
  ResolveAddedTools(&request.common.conversation);
  NormalizeTurns(&request.common.conversation);
  return request;
}

}  // namespace deepinfer
