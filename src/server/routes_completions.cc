// POST /v1/completions and its render form (api.md §8).
#include <ctime>
#include <utility>

#include "base/json_writer.h"
#include "base/philox.h"
#include "server/cache_controls.h"
#include "server/completions_request.h"
#include "server/error_response.h"
#include "server/generation.h"
#include "server/output_grammar.h"
#include "server/prepare_chat.h"
#include "server/render_answer.h"
#include "server/request_id.h"
#include "server/routes.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

struct PreparedCompletions {
  CompletionsRequest request;
  std::vector<std::vector<int32_t>> prompts;
  bool begin_added = false;  // to the first prompt; clients do not mix the forms
  RequestGrammar grammar;
};

ApiResult<PreparedCompletions> Prepare(const ServerState& state, const ServedModel& model,
                                       const HttpRequest& http_request) {
  PreparedCompletions prepared;
  ApiResult<CompletionsRequest> request = ParseCompletionsRequest(
      http_request.body, model.chat, {.max_logprobs = state.options.max_completions_logprobs});
  if (!request) return tl::unexpected(std::move(request.error()));
  prepared.request = std::move(*request);
  if (auto error = CheckModelAllowed(http_request.key, prepared.request.common.model)) {
    return tl::unexpected(std::move(*error));
  }
  ApiResult<RequestGrammar> grammar =
      MakeRequestGrammar(prepared.request.common, model.context.special);
  if (!grammar) return tl::unexpected(std::move(grammar.error()));
  prepared.grammar = std::move(*grammar);
  for (const RawPrompt& prompt : prepared.request.prompts) {
    ApiResult<EncodedPrompt> encoded =
        EncodeRawPrompt(*model.context.tokenizer, model.context.special, prompt,
                        prepared.request.suffix, state.options.raw_prompt_specials);
    if (!encoded) return tl::unexpected(std::move(encoded.error()));
    if (prepared.prompts.empty()) prepared.begin_added = encoded->begin_added;
    prepared.prompts.push_back(std::move(encoded->ids));
  }
  return prepared;
}

// One engine request per choice, prompt by prompt.
ApiResult<std::vector<EngineRequest>> MakeEngineRequests(const ServerState& state,
                                                         const ServedModel& model,
                                                         const HttpRequest& http_request,
                                                         const PreparedCompletions& prepared) {
  const CompletionsRequest& request = prepared.request;
  const ChatRequest& common = request.common;
  EngineRequest base;
  base.sampling = common.sampling;
  BanWords(*model.context.tokenizer, common.bad_words, &base.sampling);
  // The best of several are known by their log-probabilities.
  base.sampling.num_top_logprobs = request.logprobs.value_or(request.ranks() ? 0 : -1);
  base.sampling.prompt_logprobs = request.echo && request.logprobs.has_value();
  if (!base.sampling.has_seed) base.sampling.seed = RandomSeed();
  base.forced_ids = common.test_hooks.force_ids;
  base.forced_accepts = common.test_hooks.force_accept;
  if (!common.test_hooks.force_text.empty()) {
    model.context.tokenizer->EncodeWithSpecials(common.test_hooks.force_text, &base.forced_ids);
  }
  SetServerLimits(state, model, http_request, common, &base);
  base.grammar = prepared.grammar.grammar;
  std::vector<EngineRequest> requests;
  for (const std::vector<int32_t>& ids : prepared.prompts) {
    const ApiResult<int32_t> max_tokens =
        ResolveMaxTokens(common, model.chat, static_cast<int64_t>(ids.size()),
                         model.context.gateway->info().max_model_len);
    if (!max_tokens) return tl::unexpected(max_tokens.error());
    for (int32_t i = 0; i < common.num_choices; ++i) {
      EngineRequest& engine_request = requests.emplace_back(base);
      engine_request.prompt_ids = ids;
      engine_request.sampling.max_tokens = EngineMaxTokens(*max_tokens);
      engine_request.sampling.seed = DeriveSeed(base.sampling.seed, static_cast<uint32_t>(i));
    }
  }
  return requests;
}

CompletionsResponseOptions MakeResponseOptions(const ServerState& state, const ServedModel& model,
                                               PreparedCompletions& prepared) {
  const CompletionsRequest& request = prepared.request;
  const ChatRequest& common = request.common;
  CompletionsResponseOptions options;
  options.id = MakeRandomId("cmpl-");
  options.model = common.model;
  options.system_fingerprint = state.SystemFingerprint();
  options.created_s = std::time(nullptr);
  options.prompts = std::move(prepared.prompts);
  options.choices_per_prompt = common.num_choices;
  if (request.ranks()) options.answers_per_prompt = request.num_answers;
  options.num_hidden_prompt_tokens = prepared.begin_added ? 1 : 0;
  options.eos_token_id = model.context.gateway->info().eos_token_id;
  options.echo = request.echo;
  options.stream = common.stream.stream;
  options.include_usage = common.stream.include_usage;
  options.continuous_usage = common.stream.continuous_usage_stats;
  options.usage_style = state.options.usage_style;
  options.usage_extension = state.options.usage_extension;
  options.logprobs = request.logprobs.has_value();
  options.return_token_ids = common.return_token_ids;
  options.stop_strings = common.parsing.stop_sequences;
  options.include_stop_string = common.parsing.include_stop_in_output;
  options.num_tokens_without_stop = common.parsing.num_tokens_without_stop;
  return options;
}

}  // namespace

void HandleCompletions(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  ApiResult<PreparedCompletions> prepared = Prepare(state, *model, http_request);
  if (!prepared) return RespondError(*exchange, prepared.error());
  const ChatRequest& common = prepared->request.common;
  state.metrics.OnUnknownFields(common.unknown_fields);
  NoteSession(http_request, common.labels);
  ApiResult<std::vector<EngineRequest>> requests =
      MakeEngineRequests(state, *model, http_request, *prepared);
  if (!requests) return RespondError(*exchange, requests.error());

  GenerationPlan plan;
  plan.model = model;
  plan.model_name = common.model;
  plan.stream = common.stream.stream;
  plan.requests = std::move(*requests);
  plan.grammar_path = prepared->grammar.path;
  plan.only_warms = common.max_tokens == 0;
  CompletionsResponseOptions options = MakeResponseOptions(state, *model, *prepared);
  plan.answer = MakeCompletionsAnswer(*model->context.tokenizer, std::move(options));
  StartGeneration(state, exchange, std::move(plan));
}

void HandleCompletionsRender(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const HttpRequest& http_request = exchange->request();
  const ApiResult<PreparedCompletions> prepared = Prepare(state, *model, http_request);
  if (!prepared) return RespondError(*exchange, prepared.error());
  const KvScope scope =
      CacheScope(model->context.cache_secret, http_request.key, prepared->request.common.labels);
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Key("prompts").BeginArray();
  for (const std::vector<int32_t>& ids : prepared->prompts) {
    WriteRendered(*model, scope, model->context.tokenizer->Decode(ids), ids, &json);
  }
  json.EndArray().EndObject();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
