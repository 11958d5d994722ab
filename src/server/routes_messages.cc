// POST /v1/messages, its count of tokens and its render form (api.md §10).
#include <utility>

#include "base/json_writer.h"
#include "server/block_answer.h"
#include "server/chat_format.h"
#include "server/error_response.h"
#include "server/generation.h"
#include "server/messages_request.h"
#include "server/messages_writer.h"
#include "server/prepare_chat.h"
#include "server/render_answer.h"
#include "server/request_id.h"
#include "server/routes.h"

namespace deepinfer {
namespace {

struct PreparedMessages {
  PreparedChat chat;
  CacheMarks cache_marks;
};

ApiResult<PreparedMessages> Prepare(const ServerState& state, const ServedModel& model,
                                    const HttpRequest& http_request) {
  ApiResult<MessagesRequest> request = ParseMessagesRequest(http_request.body, model.chat);
  if (!request) return tl::unexpected(std::move(request.error()));
  PreparedMessages prepared;
  prepared.cache_marks = request->cache_marks;
  ApiResult<PreparedChat> chat =
      PrepareRequest(state, model, http_request, std::move(request->common));
  if (!chat) return tl::unexpected(std::move(chat.error()));
  prepared.chat = std::move(*chat);
  return prepared;
}

MessagesFormat MakeFormat(const ServerState& state, const PreparedMessages& prepared) {
  const ChatRequest& request = prepared.chat.request;
  MessagesFormat format;
  format.id = MakeRandomId("msg_");
  format.model = request.model;
  const bool only_warms = request.max_tokens == 0;
  format.starts_in_reasoning =
      !only_warms && (request.parsing.start == OutputStart::kReasoningStart ||
                      request.parsing.start == OutputStart::kReasoningContinuation);
  format.counts_cache_writes = prepared.cache_marks.count > 0 || only_warms;
  format.cache_lives_1h = prepared.cache_marks.last_lives_1h;
  format.usage_extension = state.options.usage_extension;
  return format;
}

BlockAnswerOptions MakeAnswerOptions(const ServedModel& model, const ChatRequest& request,
                                     int32_t max_tokens) {
  BlockAnswerOptions options;
  options.tokens.eos_token_id = model.context.gateway->info().eos_token_id;
  options.tokens.parser = MakeParserSettings(request.parsing, model.context.special);
  options.limited_by_context = !request.max_tokens || max_tokens < *request.max_tokens;
  return options;
}

}  // namespace

void HandleMessages(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  ApiResult<PreparedMessages> prepared = Prepare(state, *model, http_request);
  if (!prepared) return RespondError(*exchange, prepared.error());
  const ChatRequest& request = prepared->chat.request;
  ApiResult<GenerationPlan> plan = MakePlan(state, model, http_request, prepared->chat);
  if (!plan) return RespondError(*exchange, plan.error());

  MessagesFormat format = MakeFormat(state, *prepared);
  BlockAnswerOptions options =
      MakeAnswerOptions(*model, request, plan->requests.front().sampling.max_tokens);
  plan->bills_cache_writes = format.counts_cache_writes;
  options.on_tool_turn = SinkOfToolTurns(state, *model, prepared->chat, *plan);
  plan->answer =
      MakeBlockAnswer(*model->context.tokenizer, std::move(options),
                      std::make_unique<MessagesWriter>(std::move(format), NewToolCallId));
  StartGeneration(state, exchange, *std::move(plan));
}

void HandleCountTokens(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const ApiResult<PreparedMessages> prepared = Prepare(state, *model, exchange->request());
  if (!prepared) return RespondError(*exchange, prepared.error());
  HttpResponse response;
  JsonWriter json(&response.body);
  const auto count = static_cast<int64_t>(prepared->chat.prompt_ids.size());
  json.BeginObject().Field("input_tokens", count).EndObject();
  exchange->Respond(std::move(response));
}

void HandleMessagesRender(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const ApiResult<PreparedMessages> prepared = Prepare(state, *model, exchange->request());
  if (!prepared) return RespondError(*exchange, prepared.error());
  RespondRendered(*model, prepared->chat, exchange.get());
}

}  // namespace deepinfer
