#include "server/generation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/sha256.h"
#include "server/error_response.h"
#include "server/output_grammar.h"
#include "server/request_id.h"
#include "server/request_record.h"
#include "server/routes.h"
#include "server/sse.h"
#include "server/work_names.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::chrono::seconds kStall{1};  // economics.md §3

int64_t MicrosBetween(SteadyTime from, SteadyTime to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

double Millis(int64_t us) { return static_cast<double>(us) / 1000.0; }

// What the client of a request that ended with this event is told.
ApiError ErrorOf(const TokenEvent& event, const std::string& grammar_path) {
  if (event.finish == FinishReason::kQueueTimeout) return QueueTimeoutError();
  if (event.finish == FinishReason::kQuarantined) return QuarantinedError();
  if (event.finish == FinishReason::kGrammarError) return GrammarError(event.status, grammar_path);
  // A cancellation nobody here asked for comes from a drain that ran out of time.
  if (event.status.ok())
    return OverloadedError("The server stopped before the answer was complete");
  ApiError error = ApiErrorFromStatus(event.status);
  // Its parameters were valid, but together they leave the sampler nothing to choose.
  if (event.status.code() == StatusCode::kInvalidRequest) error.code = "grammar_dead_end";
  return error;
}

// Time between two events of a choice, shared out to the tokens of the second.
struct TokenGap {
  int64_t each_us = 0;
  int64_t num_tokens = 0;
};

// 50th, 90th, 99th percentile (nearest rank) and maximum over tokens. Precondition: not empty.
std::array<int64_t, 4> GapPercentiles(std::vector<TokenGap> gaps) {
  std::sort(gaps.begin(), gaps.end(),
            [](const TokenGap& a, const TokenGap& b) { return a.each_us < b.each_us; });
  int64_t total = 0;
  for (const TokenGap& gap : gaps) total += gap.num_tokens;
  std::array<int64_t, 4> result{};
  constexpr int64_t kPercents[] = {50, 90, 99, 100};
  size_t at = 0;
  int64_t seen = gaps[0].num_tokens;
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t rank = (kPercents[i] * total + 99) / 100;
    while (seen < rank) seen += gaps[++at].num_tokens;
    result[i] = gaps[at].each_us;
  }
  return result;
}

// What a request that only warms the cache shows of an event: its prompt and that it ended.
TokenEvent WithoutTokens(TokenEvent event) {
  event.ids.clear();
  event.logprobs.clear();
  event.stop_token_id = -1;
  if (event.finish == FinishReason::kStop) event.finish = FinishReason::kLength;
  return event;
}

// Names who may share cached prefixes without giving away what their keys derive from.
std::string UserNamespace(const Sha256Digest& scope) {
  constexpr size_t kLength = 32;
  return Sha256Hex({reinterpret_cast<const char*>(scope.data()), scope.size()}).substr(0, kLength);
}

void TakeUsage(const UsageCounts& usage, RequestFacts* facts) {
  // Of a prompt that was cut, only the rows that ran count.
  facts->prompt_tokens = usage.cached_tokens + usage.computed_tokens;
  facts->cached_tokens = usage.cached_tokens;
  facts->cached_by_tier = usage.cached_by_tier;
  facts->disk_tokens = usage.cached_by_tier[static_cast<size_t>(CacheTier::kDisk)] +
                       usage.cached_by_tier[static_cast<size_t>(CacheTier::kRemote)];
  facts->computed_tokens = usage.computed_tokens;
  facts->replayed_tokens = usage.replayed_tokens;
  facts->image_tokens = usage.image_tokens;
  facts->cache_write_tokens = usage.cache_write_tokens;
  facts->completion_tokens = usage.completion_tokens;
  facts->reasoning_tokens = usage.reasoning_tokens;
  facts->tool_tokens = usage.tool_tokens;
  facts->control_tokens = usage.control_tokens;
  facts->drafted_tokens = usage.drafted_tokens;
  facts->draft_accepted_tokens = usage.draft_accepted_tokens;
}

// What a client names by an Idempotency-Key; keys of two tenants have nothing in common.
struct NamedWork {
  std::string_view tenant;
  std::string_view key;
};

NamedWork NameOf(const HttpRequest& request) {
  return {request.key == nullptr ? std::string_view() : request.key->name,
          request.Header("Idempotency-Key")};
}

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // work: what the client names by a key, if it does.
  Generation(ServerState& state, std::shared_ptr<HttpExchange> exchange, GenerationPlan plan,
             const std::optional<WorkNames::Claimed>& work);
  ~Generation() { state_.generations.Remove(); }

  void Start();

 private:
  struct Choice {
    std::string engine_id;
    RequestCounters counters;  // of its last event
    SteadyTime last_tokens{};
    std::vector<int32_t> logged_ids;  // with LogRequests::kFull
    bool submitted = false;
    bool ended = false;     // the engine said its last word
    bool complete = false;  // the answer needs no more of it
  };

  // Gives the requests of a named work their names, and seeds that a retry gets too.
  void NameWork();

  // Network thread.
  void OnClientGone();

  // Stream pool.
  void SubmitAll();
  void StartStream();
  // The client has waited for a while: tells it that its turn has not come, if that is why.
  void TellOfQueue();
  // A whole answer whose headers go out now and whose body comes behind empty lines.
  void StartPadding();
  void RespondWhole(HttpResponse response);
  void OnEvent(size_t index, const TokenEvent& event);
  void NoteTimes(Choice& choice, const TokenEvent& event);
  void Feed(size_t index, const TokenEvent& event);
  void Complete();
  void SendAll(std::vector<std::string> events);
  void Fail(const ApiError& error);
  // What the client is told of the event that ended its request.
  ApiError Failure(const TokenEvent& event) const;
  void LogFailure(const Status& status) const;
  void LogOutput() const;
  ResponseMetrics Metrics() const;
  // Fills the record and the metrics, once.
  void Account(bool cancelled);
  // Against the token rate of the key, if it has one.
  void ChargeKey(int64_t tokens);
  // When every submitted choice has ended: lets go of the record.
  void CloseIfEnded();
  int64_t GeneratedTokens() const;
  void TakeWork(RequestFacts* facts) const;

  Gateway& gateway() const { return *plan_.model->context.gateway; }

  ServerState& state_;
  std::shared_ptr<HttpExchange> exchange_;
  std::shared_ptr<RequestRecord> record_;
  GenerationPlan plan_;
  const std::optional<WorkNames::Claimed> work_;
  std::shared_ptr<SerialQueue> queue_;
  const bool has_grammar_;
  const bool waits_by_class_;
  const uint64_t tenant_;
  std::atomic<bool> client_gone_{false};

  // Stream pool only.
  std::vector<Choice> choices_;
  SteadyTime first_token_{};
  SteadyTime last_token_{};
  SteadyTime finished_{};
  std::vector<TokenGap> gaps_;
  int64_t num_stalls_ = 0;
  int64_t num_chunks_ = 0;
  bool accounted_ = false;
  bool stream_started_ = false;
  bool padded_ = false;
  bool answered_ = false;
  bool closed_ = false;
};

Generation::Generation(ServerState& state, std::shared_ptr<HttpExchange> exchange,
                       GenerationPlan plan, const std::optional<WorkNames::Claimed>& work)
    : state_(state),
      exchange_(std::move(exchange)),
      record_(exchange_->request().record),
      plan_(std::move(plan)),
      work_(work),
      queue_(std::make_shared<SerialQueue>(&state.stream_pool)),
      has_grammar_(plan_.requests.front().grammar != nullptr),
      waits_by_class_(state.options.WaitsByClass(plan_.requests.front().request_class)),
      tenant_(plan_.requests.front().cache_retention.tenant_tag),
      choices_(plan_.requests.size()) {
  state_.generations.Add();
  NameWork();
  // Engines know a choice by the attempt that the ledger names.
  std::string attempt_id = MakeRandomHex128();
  size_t leader = 0;  // the first choice with the same prompt
  for (size_t i = 0; i < choices_.size(); ++i) {
    EngineRequest& request = plan_.requests[i];
    choices_[i].engine_id = attempt_id + "-" + std::to_string(i);
    request.request_id = choices_[i].engine_id;
    if (request.prompt_ids != plan_.requests[leader].prompt_ids) leader = i;
    // Log-probabilities of a prompt come from a run of its own.
    const bool shares = leader != i && !request.sampling.prompt_logprobs;
    if (shares) request.branch_of = choices_[leader].engine_id;
  }
  // Whoever prepared the request keeps the record open.
  DI_CHECK(record_->Join());
  record_->Update([&](RequestFacts& facts) {
    facts.generated = true;
    facts.attempt_id = std::move(attempt_id);
    facts.model = plan_.model_name;
    facts.num_choices = static_cast<int32_t>(choices_.size());
    facts.max_tokens = plan_.requests.front().sampling.max_tokens;
    facts.temperature = plan_.requests.front().sampling.temperature;
    facts.top_p = plan_.requests.front().sampling.top_p;
    facts.user_namespace = UserNamespace(plan_.requests.front().cache_scope);
  });
  if (state_.options.debug_endpoints) {
    const EngineRequest& first = plan_.requests.front();
    state_.prefixes.Begin(exchange_->request().request_id, first.cache_scope, first.prompt_ids);
  }
}

void Generation::NameWork() {
  if (!work_) return;
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    EngineRequest& request = plan_.requests[i];
    const ChoiceOfWork choice = MakeChoiceOfWork(work_->work, i, request.prompt_ids);
    request.work_id = choice.work_id;
    if (std::exchange(request.sampling.has_seed, true)) continue;
    request.sampling.seed = choice.seed;
  }
}

void Generation::Start() {
  exchange_->OnDisconnect([self = shared_from_this()] { self->OnClientGone(); });
  queue_->Post([self = shared_from_this()] {
    const CpuCharge charge(self->record_);
    self->SubmitAll();
  });
}

void Generation::OnClientGone() {
  client_gone_.store(true, std::memory_order_release);
  for (const Choice& choice : choices_) gateway().Cancel(choice.engine_id);
}

void Generation::SubmitAll() {
  record_->Update([](RequestFacts& facts) { facts.admitted = std::chrono::steady_clock::now(); });
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (client_gone_.load(std::memory_order_acquire)) break;
    const EngineRequest& request = plan_.requests[i];
    // A branch costs no prompt of its own.
    const size_t prompt_tokens = request.branch_of.empty() ? request.prompt_ids.size() : 0;
    const Status status = gateway().Submit(
        std::move(plan_.requests[i]), [self = shared_from_this(), i](TokenEvent event) {
          self->queue_->Post([self, i, taken = std::move(event)] {
            const CpuCharge charge(self->record_);
            self->OnEvent(i, taken);
          });
        });
    if (!status.ok()) {
      if (status.code() == StatusCode::kInvalidRequest) state_.metrics.OnValidatorGap();
      ApiError error = ApiErrorFromStatus(status);
      if (status.code() == StatusCode::kResourceExhausted) {
        error.retry_after_s = gateway().RetryAfterSeconds(tenant_);
      }
      Fail(error);
      break;
    }
    choices_[i].submitted = true;
    ChargeKey(static_cast<int64_t>(prompt_tokens));
    // The client may have left between the check above and the submission.
    if (client_gone_.load(std::memory_order_acquire)) gateway().Cancel(choices_[i].engine_id);
  }
  // A refused grammar needs its status code, so the headers wait for the first event.
  if (!answered_ && plan_.stream && !has_grammar_) StartStream();
  if (!answered_ && !plan_.stream && state_.options.whitespace_keep_alive) StartPadding();
  CloseIfEnded();
}

void Generation::StartStream() {
  const auto interval = state_.options.sse_ping_interval;
  if (interval.count() > 0) {
    exchange_->SetKeepAlive(std::string(plan_.answer->keep_alive()), interval);
  }
  exchange_->StartStream(SseResponseHead());
  stream_started_ = true;
  exchange_->OnSilence(
      exchange_->request().received + state_.options.queue_notice_delay,
      [self = shared_from_this()] { self->queue_->Post([self] { self->TellOfQueue(); }); });
}

void Generation::TellOfQueue() {
  const CpuCharge charge(record_);
  if (!charge.joined() || answered_ || first_token_ != SteadyTime{}) return;
  if (!gateway().Waits(choices_.front().engine_id)) return;
  std::vector<std::string> events;
  plan_.answer->Queue(&events);
  num_chunks_ += std::ssize(events);
  for (std::string& event : events) exchange_->SendAhead(std::move(event));
}

void Generation::StartPadding() {
  const auto interval = state_.options.sse_ping_interval;
  if (interval.count() > 0) exchange_->SetKeepAlive("\n", interval);
  exchange_->StartStream(HttpResponse{});
  padded_ = true;
}

void Generation::RespondWhole(HttpResponse response) {
  if (!padded_) return exchange_->Respond(std::move(response));
  // The status is out; the body still tells an error from an answer.
  exchange_->Send(std::move(response.body));
  exchange_->Finish();
}

void Generation::OnEvent(size_t index, const TokenEvent& event) {
  Choice& choice = choices_[index];
  NoteTimes(choice, event);
  if (state_.options.log_requests == LogRequests::kFull) {
    choice.logged_ids.insert(choice.logged_ids.end(), event.ids.begin(), event.ids.end());
  }
  choice.counters = event.counters;
  if (event.finish != FinishReason::kNone) choice.ended = true;
  if (!answered_ && !choice.complete && !client_gone_.load(std::memory_order_acquire)) {
    Feed(index, event);
  }
  CloseIfEnded();
}

void Generation::NoteTimes(Choice& choice, const TokenEvent& event) {
  if (event.ids.empty()) return;
  const SteadyTime now = std::chrono::steady_clock::now();
  if (first_token_ == SteadyTime{}) first_token_ = now;
  last_token_ = now;
  if (choice.last_tokens != SteadyTime{}) {
    const auto num_tokens = static_cast<int64_t>(event.ids.size());
    state_.metrics.OnTokens(std::chrono::duration<double>(now - choice.last_tokens).count(),
                            num_tokens);
    gaps_.push_back({MicrosBetween(choice.last_tokens, now) / num_tokens, num_tokens});
    if (now - choice.last_tokens > kStall) ++num_stalls_;
  }
  choice.last_tokens = now;
}

void Generation::Feed(size_t index, const TokenEvent& event) {
  const bool is_compiled = event.ids.empty() && event.finish == FinishReason::kNone;
  if (plan_.stream && !stream_started_ && (is_compiled || !event.ids.empty())) StartStream();
  if (is_compiled) return;
  std::vector<std::string> events;
  const ChoiceProgress progress = plan_.answer->OnEvent(
      static_cast<int32_t>(index), plan_.only_warms ? WithoutTokens(event) : event, &events);
  if (plan_.stream) {
    // The engine stops running a request whose client holds too many credits.
    num_chunks_ += static_cast<int64_t>(events.size());
    for (std::string& one : events) exchange_->Send(std::move(one), event.credit);
  }
  switch (progress) {
    case ChoiceProgress::kRunning:
      return;
    case ChoiceProgress::kStopped:
      choices_[index].complete = true;
      gateway().Cancel(choices_[index].engine_id);
      break;
    case ChoiceProgress::kFinished:
      choices_[index].complete = true;
      break;
    case ChoiceProgress::kFailed:
      if (event.finish == FinishReason::kError) LogFailure(event.status);
      if (event.finish == FinishReason::kCancelled) {
        record_->Update([](RequestFacts& facts) { facts.cancelled_by_server = true; });
      }
      Fail(Failure(event));
      return;
  }
  state_.metrics.OnFinish(plan_.answer->finish_reason(static_cast<int32_t>(index)));
  if (plan_.answer->done()) Complete();
}

ApiError Generation::Failure(const TokenEvent& event) const {
  if (event.finish != FinishReason::kQueueTimeout || !waits_by_class_) {
    return ErrorOf(event, plan_.grammar_path);
  }
  ApiError error = ApiErrorFromStatus(
      ResourceExhausted("The request waited for as long as its class may; try again later"));
  error.retry_after_s = gateway().RetryAfterSeconds(tenant_);
  return error;
}

ResponseMetrics Generation::Metrics() const {
  const SteadyTime received = exchange_->request().received;
  ResponseMetrics metrics;
  metrics.queue_ms = Millis(choices_.front().counters.queue_us);
  metrics.ttft_ms =
      first_token_ == SteadyTime{} ? 0 : Millis(MicrosBetween(received, first_token_));
  metrics.e2e_ms = Millis(MicrosBetween(received, finished_));
  return metrics;
}

void Generation::Complete() {
  answered_ = true;
  finished_ = std::chrono::steady_clock::now();
  state_.metrics.OnParserEvents(plan_.answer->malformed());
  state_.metrics.OnNanLogprobs(plan_.answer->num_nan_logprobs());
  Account(/*cancelled=*/false);
  record_->ReleaseKey();
  if (plan_.stream) {
    std::vector<std::string> events;
    plan_.answer->Close(&events);
    SendAll(std::move(events));
    exchange_->Finish();
    return;
  }
  const ResponseMetrics metrics = Metrics();
  HttpResponse response;
  response.headers.push_back(
      {"x-deepinfer-queue-ms", std::to_string(choices_.front().counters.queue_us / 1000)});
  response.headers.push_back(
      {"x-deepinfer-cached-tokens", std::to_string(plan_.answer->usage().cached_tokens)});
  const bool has_metrics = state_.options.per_request_metrics || state_.options.usage_extension;
  response.body = plan_.answer->Body(has_metrics ? &metrics : nullptr);
  record_->Update([](RequestFacts& facts) { facts.num_chunks = 1; });
  RespondWhole(std::move(response));
}

void Generation::Fail(const ApiError& error) {
  answered_ = true;
  finished_ = std::chrono::steady_clock::now();
  for (const Choice& choice : choices_) {
    if (choice.submitted && !choice.ended) gateway().Cancel(choice.engine_id);
  }
  NoteError(exchange_->request(), error.code);
  // What was refused may come again with another body.
  if (work_ && work_->is_new && first_token_ == SteadyTime{}) {
    const NamedWork name = NameOf(exchange_->request());
    state_.work_names.Release(name.tenant, name.key, work_->work);
  }
  Account(/*cancelled=*/false);
  record_->ReleaseKey();
  if (stream_started_) {
    std::vector<std::string> events;
    plan_.answer->Abort(error, exchange_->request().request_id, &events);
    SendAll(std::move(events));
    exchange_->Finish();
  } else {
    RespondWhole(ErrorResponse(exchange_->request(), error));
  }
}

void Generation::SendAll(std::vector<std::string> events) {
  record_->Update([&](RequestFacts& facts) { facts.num_chunks += std::ssize(events); });
  for (std::string& event : events) exchange_->Send(std::move(event));
}

void Generation::LogFailure(const Status& status) const {
  const bool is_clients_fault = status.code() == StatusCode::kInvalidRequest;
  Log(is_clients_fault ? LogLevel::kInfo : LogLevel::kError, "request.failed",
      {{"request_id", exchange_->request().request_id}, {"status", status}});
}

void Generation::LogOutput() const {
  if (state_.options.log_requests != LogRequests::kFull) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Log(LogLevel::kInfo, "request.output",
        {{"request_id", exchange_->request().request_id},
         {"choice", static_cast<int64_t>(i)},
         {"text", plan_.model->context.tokenizer->Decode(choices_[i].logged_ids)}});
  }
}

int64_t Generation::GeneratedTokens() const {
  int64_t generated = 0;
  for (const Choice& choice : choices_) generated += choice.counters.generated_tokens;
  return generated;
}

void Generation::ChargeKey(int64_t tokens) {
  const ApiKey* key = exchange_->request().key;
  if (key != nullptr) key->token_rate.Charge(tokens, std::chrono::steady_clock::now());
}

void Generation::Account(bool cancelled) {
  if (std::exchange(accounted_, true)) return;
  UsageCounts usage = plan_.answer->usage();
  const RequestCounters& counters = choices_.front().counters;
  // One that was cut before its first token never reached the answer.
  if (usage.prompt_tokens == 0) TakePromptCounters(counters, &usage);
  if (!plan_.bills_cache_writes) usage.cache_write_tokens = 0;
  const SteadyTime received = exchange_->request().received;
  RequestFacts copy;
  record_->Update([&](RequestFacts& facts) {
    facts.cancelled = cancelled;
    TakeUsage(usage, &facts);
    facts.cache_miss = MissReasonName(counters.miss_reason);
    if (cancelled) facts.wasted_tokens = GeneratedTokens() - usage.completion_tokens;
    facts.num_chunks += num_chunks_;
    facts.num_stalls = num_stalls_;
    if (!gaps_.empty()) facts.itl_us = GapPercentiles(std::move(gaps_));
    facts.first_token = first_token_;
    facts.last_token = last_token_;
    facts.queue_us = counters.queue_us;
    facts.prefill_us = counters.prefill_us;
    facts.decode_us = counters.decode_us;
    if (first_token_ != SteadyTime{}) facts.ttft_us = MicrosBetween(received, first_token_);
    facts.e2e_us = MicrosBetween(received, finished_);
    facts.finish_reason = plan_.answer->finish_reason(0);
    copy = facts;
  });
  ChargeKey(copy.completion_tokens + copy.wasted_tokens);
  state_.metrics.OnGeneration(copy);
  if (state_.options.debug_endpoints) {
    state_.prefixes.End(copy.request_id, counters.cached_tokens, counters.replayed_tokens);
  }
}

// Work goes on a little behind the end of an answer; all of it is in the last counters.
void Generation::TakeWork(RequestFacts* facts) const {
  for (const Choice& choice : choices_) {
    const RequestCounters& counters = choice.counters;
    facts->prefill_device_ns += counters.prefill_device_ns;
    facts->decode_device_ns += counters.decode_device_ns;
    facts->kv_block_ns += counters.kv_block_ns;
    facts->disk_read_bytes += counters.disk_read_bytes;
    facts->disk_write_bytes += counters.disk_write_bytes;
    facts->cache_written_output_tokens += counters.cache_written_output_tokens;
    facts->handoff_bytes += counters.handoff_bytes;
    facts->control_bytes += counters.control_bytes;
  }
  const RequestCounters& first = choices_.front().counters;
  facts->load_after_us = first.load_after_us;
  facts->load_us = first.load_us;
  facts->transfer_us = first.transfer_us;
}

void Generation::CloseIfEnded() {
  const bool all_ended = std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.ended || !choice.submitted;
  });
  if (!all_ended || std::exchange(closed_, true)) return;
  const bool cancelled = !answered_;
  if (cancelled) finished_ = std::chrono::steady_clock::now();
  Account(cancelled);
  LogOutput();
  const int64_t wasted =
      std::max<int64_t>(GeneratedTokens() - plan_.answer->usage().completion_tokens, 0);
  state_.metrics.OnWastedTokens(wasted);
  record_->Update([&](RequestFacts& facts) {
    facts.wasted_tokens = wasted;
    TakeWork(&facts);
  });
  record_->Leave();
}

}  // namespace

void StartGeneration(ServerState& state, std::shared_ptr<HttpExchange> exchange,
                     GenerationPlan plan) {
  const HttpRequest& request = exchange->request();
  const auto [tenant, key] = NameOf(request);
  std::optional<WorkNames::Claimed> work;
  if (!key.empty() && request.key == nullptr) {
    // Without API keys two clients may well choose the same key.
    const Sha256Digest named = WorkNames::WorkOf(tenant, key, request.route->name, request.body);
    work = WorkNames::Claimed{named, false};
  } else if (!key.empty()) {
    work = state.work_names.Claim(tenant, key, request.route->name, request.body,
                                  std::chrono::steady_clock::now());
    // With another body it is a mistake of the client, which an answer would only hide.
    if (!work) {
      ApiError error = ServeError(400, "invalid_request_error", "idempotency_key_reused",
                                  "This Idempotency-Key was used for another request");
      error.param = "Idempotency-Key";
      return RespondError(*exchange, error);
    }
  }
  std::make_shared<Generation>(state, std::move(exchange), std::move(plan), work)->Start();
}

}  // namespace deepinfer
