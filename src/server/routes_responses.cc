// POST /v1/responses and its render form (api.md §9).
#include <ctime>
#include <utility>

#include "server/block_answer.h"
#include "server/chat_format.h"
#include "server/error_response.h"
#include "server/generation.h"
#include "server/prepare_chat.h"
#include "server/render_answer.h"
#include "server/request_id.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"
#include "server/routes.h"

namespace deepinfer {
namespace {

int64_t NowSeconds() { return std::time(nullptr); }

struct PreparedResponses {
  PreparedChat chat;
  ResponsesFormat format;  // what the body says about it
};

ApiResult<PreparedResponses> Prepare(const ServerState& state, const ServedModel& model,
                                     const HttpRequest& http_request) {
  ApiResult<ResponsesRequest> request = ParseResponsesRequest(http_request.body, model.chat);
  if (!request) return tl::unexpected(std::move(request.error()));
  PreparedResponses prepared;
  prepared.format.model = request->common.model;
  prepared.format.echo_json = std::move(request->echo_json);
  prepared.format.tools = std::move(request->tools);
  ApiResult<PreparedChat> chat =
      PrepareRequest(state, model, http_request, std::move(request->common));
  if (!chat) return tl::unexpected(std::move(chat.error()));
  prepared.chat = std::move(*chat);
  return prepared;
}

}  // namespace

void HandleResponses(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  ApiResult<PreparedResponses> prepared = Prepare(state, *model, http_request);
  if (!prepared) return RespondError(*exchange, prepared.error());
  const ChatRequest& request = prepared->chat.request;
  ApiResult<GenerationPlan> plan = MakePlan(state, model, http_request, prepared->chat);
  if (!plan) return RespondError(*exchange, plan.error());

  ResponsesFormat format = std::move(prepared->format);
  format.id = MakeRandomId("resp_");
  format.created_s = NowSeconds();
  format.usage_extension = state.options.usage_extension;
  BlockAnswerOptions options;
  options.tokens.eos_token_id = model->context.gateway->info().eos_token_id;
  options.tokens.logprobs = request.logprobs;
  options.tokens.parser = MakeParserSettings(request.parsing, model->context.special);
  options.on_tool_turn = SinkOfToolTurns(state, *model, prepared->chat, *plan);
  plan->answer = MakeBlockAnswer(
      *model->context.tokenizer, std::move(options),
      std::make_unique<ResponsesWriter>(std::move(format), NewToolCallId, NowSeconds));
  StartGeneration(state, exchange, *std::move(plan));
}

void HandleResponsesRender(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const ApiResult<PreparedResponses> prepared = Prepare(state, *model, exchange->request());
  if (!prepared) return RespondError(*exchange, prepared.error());
  RespondRendered(*model, prepared->chat, exchange.get());
}

}  // namespace deepinfer
