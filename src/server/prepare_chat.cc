#include "server/prepare_chat.h"

#include <openssl/rand.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/philox.h"
#include "server/cache_controls.h"
#include "server/error_response.h"
#include "server/request_record.h"
#include "server/service_tier.h"
#include "text/prompt_encoder.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

std::optional<ApiError> CheckRunnable(const ServedModel& model, const ChatRequest& request) {
  if (!request.images.empty() && !model.context.card.vision) {
    return UnsupportedParameterError("messages", "The model does not take images");
  }
  return std::nullopt;
}

// json_object has a grammar, which leaves nothing to extract, or its answers are extracted.
void ApplyJsonMode(JsonMode mode, ChatRequest* request) {
  if (request->response_format != ResponseFormat::kJsonObject) return;
  if (mode == JsonMode::kGrammar) {
    request->parsing.parse_json_output = false;
    return;
  }
  request->answer_constraint.reset();
  const auto& constraint = request->constraint;
  if (constraint && constraint->kind == ConstraintKind::kJson) request->constraint.reset();
}

}  // namespace

ApiResult<PreparedChat> PrepareChat(const ServerState& state, const ServedModel& model,
                                    const HttpRequest& http_request, std::string_view body) {
  return PrepareRequest(state, model, http_request, ParseChatRequest(body, model.chat));
}

ApiResult<PreparedChat> PrepareRequest(const ServerState& state, const ServedModel& model,
                                       const HttpRequest& http_request,
                                       ApiResult<ChatRequest> request) {
  PreparedChat prepared;
  if (!request) return tl::unexpected(std::move(request.error()));
  prepared.request = std::move(*request);
  if (auto error = CheckRunnable(model, prepared.request)) return tl::unexpected(std::move(*error));
  if (auto error = CheckModelAllowed(http_request.key, prepared.request.model)) {
    return tl::unexpected(std::move(*error));
  }
  ApplyJsonMode(state.options.json_mode, &prepared.request);
  ApiResult<RequestGrammar> grammar = MakeRequestGrammar(prepared.request, model.context.special);
  if (!grammar) return tl::unexpected(std::move(grammar.error()));
  prepared.grammar = std::move(*grammar);
  prepared.cache_scope =
      CacheScope(model.context.cache_secret, http_request.key, prepared.request.labels);
  if (state.options.exact_replay) {
    const ReplayOwner owner{prepared.cache_scope.digest,
                            CacheTenantTag(model.context.cache_secret, http_request.key)};
    prepared.replayed =
        ReplayToolTurns(state.replay, owner, model.context, &prepared.request.conversation);
  }
  prepared.segments = Render(prepared.request.conversation,
                             {.add_generation_header = prepared.request.add_generation_prompt});
  Result<std::vector<int32_t>> ids =
      EncodeSegments(*model.context.tokenizer, prepared.segments, &prepared.resume_points);
  if (!ids.ok()) return tl::unexpected(ApiErrorFromStatus(ids.status()));
  prepared.prompt_ids = *std::move(ids);
  return prepared;
}

ToolTurnSink SinkOfToolTurns(ServerState& state, const ServedModel& model,
                             const PreparedChat& prepared, const GenerationPlan& plan) {
  if (!state.options.exact_replay || !prepared.request.parsing.parse_tool_calls) return {};
  return KeepToolTurns(&state.replay, plan.requests.front(), model.context.special,
                       prepared.prompt_ids);
}

std::optional<ApiError> CheckModelAllowed(const ApiKey* key, std::string_view model) {
  if (key == nullptr || key->AllowsModel(model)) return std::nullopt;
  ApiError error = ServeError(403, "permission_error", "permission_denied",
                              "This API key may not use the model");
  error.param = "model";
  return error;
}

namespace {

ApiResult<std::vector<EngineRequest>> MakeEngineRequests(const ServerState& state,
                                                         const ServedModel& model,
                                                         const HttpRequest& http_request,
                                                         const PreparedChat& prepared) {
  const ChatRequest& request = prepared.request;
  const ApiResult<int32_t> max_tokens =
      ResolveMaxTokens(request, model.chat, static_cast<int64_t>(prepared.prompt_ids.size()),
                       model.context.gateway->info().max_model_len);
  if (!max_tokens) return tl::unexpected(max_tokens.error());
  EngineRequest base;
  base.prompt_ids = prepared.prompt_ids;
  base.state_at = prepared.resume_points;
  base.sampling = request.sampling;
  base.sampling.max_tokens = EngineMaxTokens(*max_tokens);
  BanWords(*model.context.tokenizer, request.bad_words, &base.sampling);
  base.sampling.num_top_logprobs = request.logprobs ? request.top_logprobs.value_or(0) : -1;
  if (!base.sampling.has_seed) base.sampling.seed = RandomSeed();
  base.forced_ids = request.test_hooks.force_ids;
  base.forced_accepts = request.test_hooks.force_accept;
  if (!request.test_hooks.force_text.empty()) {
    model.context.tokenizer->EncodeWithSpecials(request.test_hooks.force_text, &base.forced_ids);
  }
  SetServerLimits(state, model, http_request, request, &base);
  if (request.labels.prompt_cache_mode == "explicit") {
    const std::vector<int32_t>& marks = prepared.resume_points;
    base.cache_retention.kept_tokens = marks.empty() ? 0 : marks.back();
  }
  base.grammar = prepared.grammar.grammar;
  std::vector<EngineRequest> requests(static_cast<size_t>(request.num_choices), base);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.seed = DeriveSeed(base.sampling.seed, static_cast<uint32_t>(i));
  }
  return requests;
}

}  // namespace

ApiResult<GenerationPlan> MakePlan(ServerState& state, std::shared_ptr<const ServedModel> model,
                                   const HttpRequest& http_request, const PreparedChat& prepared) {
  const ChatRequest& request = prepared.request;
  state.metrics.OnUnknownFields(request.unknown_fields);
  state.metrics.OnReplayedTurns(prepared.replayed.num_used, prepared.replayed.num_changed);
  NoteSession(http_request, request.labels);
  ApiResult<std::vector<EngineRequest>> requests =
      MakeEngineRequests(state, *model, http_request, prepared);
  if (!requests) return tl::unexpected(std::move(requests.error()));
  GenerationPlan plan;
  plan.model = std::move(model);
  plan.model_name = request.model;
  plan.stream = request.stream.stream;
  plan.requests = std::move(*requests);
  plan.grammar_path = prepared.grammar.path;
  plan.only_warms = request.max_tokens == 0;
  return plan;
}

void NoteSession(const HttpRequest& http_request, const RequestLabels& labels) {
  if (labels.session_id.empty()) return;
  http_request.record->Update([&](RequestFacts& facts) {
    if (facts.session_label.empty()) facts.session_label = labels.session_id;
  });
}

void BanWords(const Tokenizer& tokenizer, const std::vector<std::string>& words,
              SamplingParams* sampling) {
  for (const std::string& word : words) {
    for (const std::string& spelled : {word, " " + word}) {
      std::vector<int32_t> ids;
      tokenizer.EncodeText(spelled, &ids);
      if (!ids.empty()) sampling->banned_sequences.push_back(std::move(ids));
    }
  }
}

void SetServerLimits(const ServerState& state, const ServedModel& model,
                     const HttpRequest& http_request, const ChatRequest& body,
                     EngineRequest* request) {
  using std::chrono::microseconds;
  int64_t timeout_us =
      std::chrono::duration_cast<microseconds>(state.options.request_timeout).count();
  const std::string_view text = http_request.Header("x-stainless-read-timeout");
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (!body.stream.stream && error == std::errc() && end == text.data() + text.size() &&
      seconds > 0 && seconds * 1e6 < static_cast<double>(timeout_us)) {
    timeout_us = static_cast<int64_t>(seconds * 1e6);
  }
  const int64_t now_us = SteadyClock().NowUs();
  request->deadline_us = now_us + timeout_us;
  // Nobody waits for an agent that compacts its history.
  const bool is_compaction = http_request.Header("x-deepseek-harness-compact") == "1";
  request->request_class = is_compaction ? RequestClass::kBatch : ServiceClass(body.labels);
  const auto max_wait = state.options.MaxWait(request->request_class);
  request->queue_deadline_us = now_us + std::chrono::duration_cast<microseconds>(max_wait).count();
  const auto& secret = model.context.cache_secret;
  request->cache_scope = CacheScope(secret, http_request.key, body.labels).digest;
  request->cache_retention =
      MakeCacheRetention(state.options.cache, secret, http_request.key, body.labels,
                         request->request_class == RequestClass::kBatch);
  std::vector<int32_t>& banned = request->sampling.banned_ids;
  const std::vector<int32_t>& global_ban = state.options.global_ban;
  banned.insert(banned.end(), global_ban.begin(), global_ban.end());
  const std::optional<int32_t>& image = model.context.special.image;
  if (image && *image < model.context.gateway->info().vocab_size) {
    banned.push_back(*image);
  }
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  DI_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof seed) == 1);
  return seed;
}

}  // namespace deepinfer
