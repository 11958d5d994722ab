// POST /v1/chat/completions and its render form (api.md §3-§5, §8).
#include <ctime>
#include <utility>

#include "server/error_response.h"
#include "server/generation.h"
#include "server/prepare_chat.h"
#include "server/render_answer.h"
#include "server/request_id.h"
#include "server/request_record.h"
#include "server/routes.h"
#include "server/service_tier.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

// The message that an answer continues, as the begin of the answer.
std::vector<OutputEvent> EchoOf(const ChatRequest& request) {
  std::vector<OutputEvent> echo;
  if (!request.echo || !request.conversation.continues_last_turn()) return echo;
  const auto& turn = std::get<AssistantTurn>(request.conversation.turns.back());
  if (request.conversation.thinking && !turn.reasoning.empty()) {
    echo.push_back({OutputEventKind::kReasoning, -1, turn.reasoning, {}});
  }
  if (!turn.text.empty()) echo.push_back({OutputEventKind::kContent, -1, turn.text, {}});
  return echo;
}

ChatResponseOptions MakeResponseOptions(const ServerState& state, const ServedModel& model,
                                        const PreparedChat& prepared) {
  const ChatRequest& request = prepared.request;
  ChatResponseOptions options;
  options.id = MakeRandomId("chatcmpl-");
  options.model = request.model;
  options.system_fingerprint = state.SystemFingerprint();
  const std::string& tier = request.labels.service_tier;
  if (!tier.empty()) options.service_tier = TierUsed(tier);
  options.created_s = std::time(nullptr);
  options.num_choices = request.num_choices;
  options.thinking = request.conversation.thinking;
  options.stream = request.stream.stream;
  options.include_usage = request.stream.include_usage;
  options.continuous_usage = request.stream.continuous_usage_stats;
  options.usage_style = state.options.usage_style;
  options.usage_extension = state.options.usage_extension;
  options.reasoning_field = state.options.reasoning_field;
  options.logprobs = request.logprobs;
  options.eos_token_id = model.context.gateway->info().eos_token_id;
  options.return_token_ids = request.return_token_ids;
  options.echo = EchoOf(request);
  if (request.return_token_ids) options.prompt_ids = prepared.prompt_ids;
  options.parser = MakeParserSettings(request.parsing, model.context.special);
  return options;
}

}  // namespace

void HandleChatCompletions(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  ApiResult<PreparedChat> prepared = PrepareChat(state, *model, http_request, http_request.body);
  if (!prepared) return RespondError(*exchange, prepared.error());
  const ChatRequest& request = prepared->request;
  ApiResult<GenerationPlan> plan = MakePlan(state, model, http_request, *prepared);
  if (!plan) return RespondError(*exchange, plan.error());
  if (!request.add_generation_prompt && !request.conversation.continues_last_turn()) {
    return RespondError(*exchange, UnsupportedParameterError(
                                       "add_generation_prompt",
                                       "An answer needs the generation prompt or a message to "
                                       "continue; render and tokenize work without"));
  }

  ChatResponseOptions options = MakeResponseOptions(state, *model, *prepared);
  options.on_tool_turn = SinkOfToolTurns(state, *model, *prepared, *plan);
  plan->answer = MakeChatAnswer(*model->context.tokenizer, std::move(options));
  StartGeneration(state, exchange, *std::move(plan));
}

void HandleChatRender(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  const ApiResult<PreparedChat> prepared =
      PrepareChat(state, *model, http_request, http_request.body);
  if (!prepared) return RespondError(*exchange, prepared.error());
  RespondRendered(*model, *prepared, exchange.get());
}

}  // namespace deepinfer
