#include "server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "server/chat_body.h"
#include "server/chat_convert.h"
#include "server/field_reader.h"
#include "server/json_body.h"

namespace deepinfer {
namespace {

// Room for an answer when the client names no limit (api.md §3).
constexpr int32_t kDefaultMaxTokensPlain = 8192;
constexpr int32_t kDefaultMaxTokensThinking = 65536;
constexpr int32_t kDefaultMaxTokensMaxEffort = 131072;

Refusal ResolveModel(const ChatBody& body, const ChatRequestOptions& options,
                     ChatRequest* request) {
  request->model = body.model;
  request->conversation.form = options.default_form;
  if (!options.resolve_model) return std::nullopt;
  const std::optional<PromptForm> form = options.resolve_model(body.model);
  if (!form) {
    ApiError error = ModelNotFoundError(body.model, options.served_models);
    error.status = options.unknown_model_status;
    return error;
  }
  request->conversation.form = *form;
  return std::nullopt;
}

// `thinking` decides over the effort, both decide over the template arguments.
void ResolveThinking(const ChatBody& body, const ChatRequestOptions& options,
                     ChatRequest* request) {
  const BodyTemplateArguments& arguments = body.template_arguments;
  const std::optional<BodyEffort>& effort = body.effort ? body.effort : arguments.effort;
  const std::optional<bool> asked = body.thinking ? body.thinking : arguments.thinking;
  Conversation& conversation = request->conversation;
  if (asked) {
    conversation.thinking = *asked;
  } else if (effort) {
    conversation.thinking = !effort->off;
  } else {
    conversation.thinking = options.default_thinking;
  }
  conversation.effort = options.default_effort;
  if (conversation.effort == kEffortLow) request->effort_name = "low";
  if (conversation.effort == kEffortHigh) request->effort_name = "high";
  if (conversation.effort == kEffortMax) request->effort_name = "max";
  if (effort && !effort->off) {
    conversation.effort = effort->value;
    request->effort_name = effort->name;
  }
  if (!conversation.thinking) request->effort_name.clear();
}

OutputStart StartOf(const Conversation& conversation) {
  if (!conversation.thinking) return OutputStart::kContentStart;
  if (!conversation.continues_last_turn()) return OutputStart::kReasoningStart;
  const auto& turn = std::get<AssistantTurn>(conversation.turns.back());
  if (!turn.text.empty()) return OutputStart::kContentContinuation;
  return turn.reasoning.empty() ? OutputStart::kReasoningStart
                                : OutputStart::kReasoningContinuation;
}

}  // namespace

std::string_view ImageDetailName(ImageDetail detail) {
  switch (detail) {
    case ImageDetail::kLow:
      return "low";
    case ImageDetail::kHigh:
      return "high";
    case ImageDetail::kOriginal:
      return "original";
    case ImageDetail::kAuto:
      return "auto";
  }
  return "high";
}

std::string_view ResponseFormatName(ResponseFormat format) {
  switch (format) {
    case ResponseFormat::kText:
      return "text";
    case ResponseFormat::kJsonObject:
      return "json_object";
    case ResponseFormat::kJsonSchema:
      return "json_schema";
    case ResponseFormat::kRegex:
      return "regex";
    case ResponseFormat::kStructuralTag:
      return "structural_tag";
  }
  return "text";
}

std::string_view ConstraintKindName(ConstraintKind kind) {
  switch (kind) {
    case ConstraintKind::kJson:
      return "json";
    case ConstraintKind::kRegex:
      return "regex";
    case ConstraintKind::kChoice:
      return "choice";
    case ConstraintKind::kGrammar:
      return "grammar";
    case ConstraintKind::kStructuralTag:
      return "structural_tag";
    case ConstraintKind::kToolCall:
      return "tool_call";
    case ConstraintKind::kToolCallRequired:
      return "tool_call_required";
  }
  return "json";
}

Refusal ConvertBody(const ChatBody& body, const ChatRequestOptions& options,
                    const TurnsStep& convert_turns, ChatRequest* request,
                    const CheckStep& check_behind_tools) {
  if (Refusal refusal = ResolveModel(body, options, request)) return refusal;
  if (Refusal refusal = CheckToolNames(body, options)) return refusal;
  ResolveThinking(body, options, request);
  if (Refusal refusal = convert_turns(request)) return refusal;
  if (Refusal refusal = ConvertTools(body, options, request)) return refusal;
  if (Refusal refusal = ConvertStop(body, options, request)) return refusal;
  if (Refusal refusal = ConvertStream(body, request)) return refusal;
  if (Refusal refusal = ConvertResponseFormat(body, options, request)) return refusal;
  if (Refusal refusal = ConvertStrictTools(body, request)) return refusal;
  if (check_behind_tools) {
    if (Refusal refusal = check_behind_tools()) return refusal;
  }
  if (Refusal refusal = ConvertSampling(body, options, request)) return refusal;
  if (Refusal refusal = ConvertLabels(body, request)) return refusal;
  request->parsing.start = StartOf(request->conversation);
  return std::nullopt;
}

std::string JoinTexts(const std::vector<std::string>& texts, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += texts[i];
  }
  return joined;
}

ApiError Refuse(std::string param, std::string message, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.code = std::move(code);
  if (!param.empty()) error.param = std::move(param);
  return error;
}

ApiResult<ChatRequest> ParseChatRequest(std::string_view body_text,
                                        const ChatRequestOptions& options) {
  ApiResult<JsonDocument> document = ParseJsonBody(body_text);
  if (!document) return tl::unexpected(std::move(document.error()));

  ReadState state;
  state.document = &*document;
  state.reject_duplicate_keys = options.reject_duplicate_keys;
  const ChatBody body = ReadChatBody(document->root(), options, &state);
  if (state.error) return tl::unexpected(std::move(*state.error));

  ChatRequest request;
  const TurnsStep convert_turns = [&](ChatRequest* target) -> Refusal {
    if (Refusal refusal = ConvertMessages(body, options, target)) return refusal;
    return CheckJsonWord(body);
  };
  if (Refusal refusal = ConvertBody(body, options, convert_turns, &request)) {
    return tl::unexpected(std::move(*refusal));
  }
  return request;
}

ApiResult<int32_t> ResolveMaxTokens(const ChatRequest& request, const ChatRequestOptions& options,
                                    int64_t num_prompt_tokens, int64_t num_context_tokens) {
  const int64_t room = num_context_tokens - num_prompt_tokens;
  const bool is_prewarm = request.max_tokens == 0;
  if (room < (is_prewarm ? 0 : 1)) {
    return tl::unexpected(
        ContextLengthError(request.prompt_field, num_prompt_tokens, num_context_tokens));
  }
  int32_t wanted = kDefaultMaxTokensPlain;
  if (request.max_tokens) {
    wanted = *request.max_tokens;
  } else if (options.default_max_tokens) {
    wanted = *options.default_max_tokens;
  } else if (request.conversation.thinking) {
    wanted = request.conversation.effort >= kEffortMax ? kDefaultMaxTokensMaxEffort
                                                       : kDefaultMaxTokensThinking;
  }
  return static_cast<int32_t>(std::min<int64_t>(wanted, room));
}

}  // namespace deepinfer
