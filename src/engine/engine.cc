#include "engine/engine.h"

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "base/thread_name.h"
#include "base/thread_priority.h"
#include "engine/actions/compile.h"
#include "engine/actions/export_state.h"
#include "engine/actions/fork.h"
#include "engine/actions/load_hit.h"
#include "engine/actions/load_stored.h"
#include "engine/actions/park.h"
#include "engine/actions/take_over.h"
#include "engine/invariants.h"
#include "engine/kv_namespace.h"
#include "engine/planning.h"
#include "engine/speculation.h"
#include "engine/step_time_file.h"
#include "kvcache/kv_store.h"
#include "sched/limits.h"
#include "text/grammar_pool.h"

namespace deepinfer {

namespace {

// A wait on the system's clock must not overflow it.
constexpr int64_t kMaxDrainUs = int64_t{365} * 24 * 3600 * 1'000'000;
// A sleeping engine looks at deadlines this often.
constexpr std::chrono::milliseconds kIdleLook{100};
// After a plan that changed memory but ran nothing, and while blocks come from the store.
constexpr std::chrono::milliseconds kShortLook{1};
// A receiver that keeps a full window this long loses its place on the device.
constexpr int64_t kParkStalledUs = 2'000'000;

KeyOrigin MakeKeyOrigin(const Model& model, const KvStore* store) {
  KeyOrigin origin;
  origin.block_tokens = kBlockTokens;
  // Blocks that live in this process only need no more than what can differ inside it.
  origin.namespace_id =
      store != nullptr ? store->context().options.namespace_id : MakeKvNamespace(model, {}).Id();
  return origin;
}

// Segments may have any size.
bool HoldsBlocksOf(const KvStore& store, const Model& model) {
  const KvBlockLayout& stored = store.context().options.layout;
  const KvBlockLayout own = MakeBlockLayout(model.layout());
  return stored.format_id == own.format_id && stored.block_tokens == own.block_tokens &&
         stored.sections == own.sections && stored.payload_bytes() == model.layout().block_bytes;
}

// Whether a step should come of it by itself. A slow receiver, a load, and a hand-off that has yet
// to let go of its blocks keep requests waiting through no fault of the engine.
bool HasRunnable(const EngineState& state) {
  if (!state.loading.empty() || !state.pins->none_out()) return false;
  const auto runs = [](const Sequence* s) {
    return !IsTerminal(s->state) && s->state != SequenceState::kParking &&
           s->schedule.stalled_since_us == 0;
  };
  return state.queue.size() > 0 || std::any_of(state.active.begin(), state.active.end(), runs) ||
         std::any_of(state.parked.begin(), state.parked.end(), runs);
}

}  // namespace

// Lets credits of events that outlive the engine die in peace.
class Engine::Waker final : public WakeUp {
 public:
  explicit Waker(Engine* engine) : engine_(engine) {}

  void Wake() override {
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) return;
    {
      const std::lock_guard engine_lock(engine_->mutex_);
      engine_->woken_ = true;
    }
    engine_->wake_.notify_all();
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    engine_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Engine* engine_;
};

Engine::Engine(Model* model, const EngineOptions& options, const Clock* clock,
               std::unique_ptr<KvMemory> memory, GrammarPool* grammars, KvStore* store)
    : clock_(clock),
      began_us_(clock->NowUs()),
      store_(store),
      vocab_size_(model->config().vocab_size),
      max_model_len_(options.max_model_len),
      max_queued_requests_(options.max_queued_requests),
      prefix_cache_(options.prefix_cache),
      key_origin_(MakeKeyOrigin(*model, store)),
      grammars_(grammars),
      state_(model, options, clock, std::move(memory), grammars, store),
      executor_(model, options, clock),
      waker_(std::make_shared<Waker>(this)),
      published_(state_.statistics),
      watchdog_(clock,
                [this](std::string_view cause, int64_t still_us) { ReportHang(cause, still_us); }) {
  state_.pins = std::make_shared<PinReturns>(waker_);
}

Result<std::unique_ptr<Engine>> Engine::Create(Model* model, const EngineOptions& options,
                                               const Clock* clock, GrammarPool* grammars,
                                               KvStore* store) {
  EngineOptions o = options;
  o.max_model_len = std::min(o.max_model_len, model->max_positions());
  if (o.max_model_len < 2) return InvalidRequest("max_model_len must be at least 2");
  if (o.max_num_batched_tokens < 1) {
    return InvalidRequest("max_num_batched_tokens must be at least 1");
  }
  if (o.max_num_seqs < 1) return InvalidRequest("max_num_seqs must be at least 1");
  DI_RETURN_IF_ERROR(ValidateSpeculation(model->config(), o.speculation));
  if (o.speculation.enabled && model->config().dspark.num_layers == 0) {
    Log(LogLevel::kInfo, "engine.no_drafts",
        {{"reason", "the checkpoint has no draft layers; every token is decoded by itself"}});
  }
  if (store != nullptr && !HoldsBlocksOf(*store, *model)) {
    return InvalidRequest("the cache store was opened for blocks of another layout");
  }
  DI_ASSIGN_OR_RETURN(std::unique_ptr<KvMemory> memory, KvMemory::Create(model, o));
  std::unique_ptr<Engine> engine(new Engine(model, o, clock, std::move(memory), grammars, store));
  engine->LoadStepTimes();
  engine->thread_ = std::thread([e = engine.get()] { e->Loop(); });
  engine->watchdog_.Start();
  return engine;
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = inbox_.stop = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  waker_->Detach();
  KeepStepTimes();
}

void Engine::LoadStepTimes() {
  const std::string& path = state_.options.step_time_file;
  if (path.empty()) return;
  Result<StepTimeModel> known = deepinfer::LoadStepTimes(path);
  if (known.ok()) {
    state_.step_time = *std::move(known);
  } else if (known.status().code() != StatusCode::kNotFound) {
    Log(LogLevel::kWarning, "engine.step_times", {{"status", known.status()}});
  }
}

void Engine::KeepStepTimes() const {
  const std::string& path = state_.options.step_time_file;
  // What is in the file already needs no writing.
  if (path.empty() || state_.statistics.steps < kMinObservations) return;
  const Status status = SaveStepTimes(path, state_.step_time);
  if (!status.ok()) Log(LogLevel::kWarning, "engine.step_times", {{"status", status}});
}

Status Engine::Submit(EngineRequest request, TokenSink sink) {
  DI_RETURN_IF_ERROR(ValidateRequest(request, vocab_size_, max_model_len_));
  DI_RETURN_IF_ERROR(CheckResumePoint(state_, request));
  const bool leaves_decoder =
      request.hand_off == HandOffProfile::kEncoder || request.hand_off == HandOffProfile::kTail;
  if (state_.model->options().part == ModelPart::kEncoder && (!leaves_decoder || request.resume)) {
    return Unsupported("this engine holds the layers below the decoder only");
  }
  if (request.grammar != nullptr && grammars_ == nullptr) {
    return Unsupported("this engine compiles no grammars");
  }
  KeyOrigin origin = key_origin_;
  origin.scope.digest = request.cache_scope;
  // Parking finds its blocks by key, so without sharing every request has a scope of its own.
  if (!prefix_cache_) origin.scope.digest = Sha256(request.request_id);
  const int64_t now_us = clock_->NowUs();
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(sink), origin);
  sequence->cache.chain.Extend(sequence->request.prompt_ids, {});
  sequence->schedule.submitted_us = now_us;
  if (const auto& resume = sequence->request.resume) {
    sequence->num_emitted = static_cast<int32_t>(resume->ids.size());
  }
  sequence->window = std::make_shared<DeliveryWindow>(waker_);
  if (const auto& grammar = sequence->request.grammar; grammar != nullptr) {
    sequence->grammar.ticket = grammars_->Compile(grammar->source);
    sequence->grammar.ticket->WhenReady([waker = waker_] { waker->Wake(); });
  }
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return Unavailable("the engine is draining");
    const auto waiting =
        static_cast<int32_t>(inbox_.submitted.size()) + published_.waiting + published_.pending;
    if (waiting >= max_queued_requests_) return ResourceExhausted("the queue is full");
    const std::string& name = sequence->request.request_id;
    if (!live_.emplace(name, next_id_).second) {
      return InvalidRequest("request id '" + name + "' is already live");
    }
    sequence->id = next_id_++;
    inbox_.submitted.push_back(std::move(sequence));
    ++num_unfinished_;
  }
  wake_.notify_all();
  return OkStatus();
}

void Engine::Cancel(std::string_view request_id) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(std::string(request_id));
    if (it == live_.end()) return;
    inbox_.cancelled.insert(it->second);
  }
  wake_.notify_all();
}

void Engine::Drain(int64_t deadline_us) {
  const auto is_drained = [this] { return num_unfinished_ == 0; };
  const int64_t now_us = clock_->NowUs();
  std::unique_lock lock(mutex_);
  draining_ = true;
  const int64_t remaining_us =
      deadline_us <= now_us ? 0 : std::min(deadline_us - now_us, kMaxDrainUs);
  if (drained_.wait_for(lock, std::chrono::microseconds(remaining_us), is_drained)) return;
  for (const auto& [name, id] : live_) inbox_.cancelled.insert(id);
  wake_.notify_all();
  drained_.wait(lock, is_drained);
}

Status Engine::Profile(int32_t num_steps, int64_t deadline_us, ProfileSink done) {
  if (num_steps < 1 || num_steps > kMaxProfileSteps) {
    return InvalidRequest("num_steps must be 1 to " + std::to_string(kMaxProfileSteps));
  }
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.stop) return Unavailable("the engine stops");
    if (profiling_) return ResourceExhausted("a profile is being recorded");
    profiling_ = true;
    auto finish = [this, done = std::move(done)](std::vector<StepTrace> steps) {
      {
        const std::lock_guard engine_lock(mutex_);
        profiling_ = false;
      }
      done(std::move(steps));
    };
    inbox_.profile = ProfileRequest{num_steps, deadline_us, std::move(finish)};
  }
  wake_.notify_all();
  return OkStatus();
}

EngineStatistics Engine::Statistics() const {
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  EngineStatistics s = published_;
  s.waiting += static_cast<int32_t>(inbox_.submitted.size());
  if (idle_) known_until_us_ = std::max(known_until_us_, now_us);
  s.accounted_us = known_until_us_ - began_us_;
  if (grammars_ != nullptr) s.grammars = grammars_->stats();
  return s;
}

StoredPrefix Engine::FindStored(std::span<const BlockKey> keys, int32_t prompt_tokens) const {
  StoredPrefix stored;
  if (store_ == nullptr || !prefix_cache_ || decoder_tail() != DecoderTail::kCompact) return stored;
  keys = keys.first(std::min(keys.size(), static_cast<size_t>(prompt_tokens / kBlockTokens)));
  const LookupResult found = store_->Lookup(keys, MaxReplayGen(state_));
  for (const BlockRequest& block : found.blocks) {
    (store_->IsPeers(block) ? stored.peer_tokens : stored.own_tokens) += kBlockTokens;
  }
  if (stored.tokens() < state_.options.min_hit_tokens) return {};
  ReplayInput input;
  input.prompt_tokens = prompt_tokens;
  input.hit_tokens = stored.tokens();
  const ReplayPlan plan = PlanReplay(state_.memory->geometry(), state_.options.replay, input);
  stored.first_row = static_cast<int32_t>(plan.first_row);
  return stored;
}

StoreStatistics Engine::Store() const {
  return store_ == nullptr ? StoreStatistics() : CollectStoreStatistics(*store_);
}

bool Engine::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Engine::Loop() {
  NameThread("engine");
  RunBeforeEqualThreads();
  const int32_t max_launched = executor_.asynchronous() ? 2 : 1;
  while (true) {
    const bool stop = TakeInbox();
    ReturnPins(state_);
    if (stop && state_.sequences.empty() && state_.pins->none_out()) {
      SweepIdle(state_);
      return profiler_.End();
    }
    const int64_t now_us = clock_->NowUs();
    profiler_.Look(now_us);
    CheckDeadlines(now_us);
    CheckReceivers(now_us);
    FinishParking();
    PollLoads(state_);
    store_watch_.Look(store_, now_us, &state_.statistics);
    PlannedStep planned;
    if (!stop) planned = PlanStep(state_);
    const bool launched = planned.job != nullptr;
    if (launched) {
      planned.job->number = num_jobs_++;
      planned.job->plan_us = now_us;
      planned.job->launched_us = clock_->NowUs();
      if (num_launched_ == 0) NoteBusy();
      ++num_launched_;
      flight_record_.Launch(*planned.job);
      executor_.Launch(std::move(planned.job));
    }
    Publish();
    watchdog_.NoteTurn(num_launched_ > 0 || HasRunnable(state_));
    // One step ahead of the results: the next one is launched before this one is looked at.
    if (num_launched_ >= max_launched || (num_launched_ > 0 && !launched)) {
      Process(executor_.Wait());
    } else if (num_launched_ == 0) {
      SweepIdle(state_);
      const bool changes = planned.changed_memory || !state_.loading.empty();
      Sleep(changes ? kShortLook : kIdleLook);
    }
  }
}

bool Engine::TakeInbox() {
  Inbox inbox;
  {
    const std::lock_guard lock(mutex_);
    std::swap(inbox, inbox_);
    inbox_.stop = inbox.stop;
    woken_ = false;
    published_.waiting += static_cast<int32_t>(inbox.submitted.size());
  }
  if (inbox.profile) profiler_.Start(*std::move(inbox.profile));
  for (std::unique_ptr<Sequence>& s : inbox.submitted) Accept(std::move(s));
  if (inbox.stop) {
    for (const auto& [id, s] : state_.sequences) inbox.cancelled.insert(id);
  }
  for (int64_t id : inbox.cancelled) {
    Sequence* s = state_.Find(id);
    if (s == nullptr || IsTerminal(s->state)) continue;
    ++state_.statistics.cancels;
    FinishEarly(*s, FinishReason::kCancelled);
  }
  CheckGrammars();
  return inbox.stop;
}

void Engine::Accept(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  state_.swept = false;
  state_.sequences.emplace(s.id, std::move(sequence));
  state_.deadlines.Add(s.request.deadline_us, s.id, DeadlineKind::kTotal);
  state_.deadlines.Add(s.request.queue_deadline_us, s.id, DeadlineKind::kQueue);
  state_.deadlines.Add(s.request.first_token_deadline_us, s.id, DeadlineKind::kFirstToken);
  if (s.request.grammar != nullptr) {
    BeginCompile(state_, s);
  } else {
    Route(s);
  }
}

void Engine::CheckGrammars() {
  if (state_.compiling.empty()) return;
  for (const CompiledSequence& done : TakeCompiled(state_, [waker = waker_] { waker->Wake(); })) {
    if (done.status.ok()) {
      TokenEvent compiled;
      const auto& resume = done.sequence->request.resume;
      if (resume) compiled.start_index = static_cast<int32_t>(resume->ids.size());
      Deliver(*done.sequence, std::move(compiled));
      Route(*done.sequence);
    } else {
      FinishEarly(*done.sequence, FinishReason::kGrammarError, done.status);
    }
  }
}

void Engine::Route(Sequence& s) {
  if (s.request.resume) {
    const Status status = TakeOver(state_, s);
    if (!status.ok()) FinishEarly(s, FinishReason::kError, status);
    return;
  }
  SetTail(state_, s);
  // Below the decoder nothing of it can be of use.
  if (s.hands_over_undecided() && s.cache.decoder_origin == 0) return HandOver(s, TokenEvent());
  Sequence* leader = nullptr;
  if (!s.request.branch_of.empty()) {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(s.request.branch_of);
    if (it != live_.end()) leader = state_.Find(it->second);
  }
  if (leader != nullptr && CanShare(*leader, s)) {
    s.state = SequenceState::kPending;
    leader->branches.push_back(s.id);
  } else {
    BeginWaiting(state_, s);
  }
}

void Engine::CheckDeadlines(int64_t now_us) {
  for (const Deadline& d : state_.deadlines.TakePassed(now_us)) {
    Sequence* s = state_.Find(d.sequence_id);
    if (s == nullptr || IsTerminal(s->state)) continue;
    const bool waits = s->state == SequenceState::kQueued || s->state == SequenceState::kPending ||
                       (s->state == SequenceState::kLoading && !s->resumes());
    if (d.kind == DeadlineKind::kQueue) {
      if (waits)
        FinishEarly(*s, FinishReason::kQueueTimeout,
                    Unavailable("the request waited too long for its turn"));
    } else if (d.kind == DeadlineKind::kTotal || s->num_generated == 0) {
      FinishEarly(*s, FinishReason::kDeadline,
                  DeadlineExceeded("the deadline of the request passed"));
    }
  }
}

void Engine::CheckReceivers(int64_t now_us) {
  const auto look = [&](Sequence& s) {
    int64_t& since = s.schedule.stalled_since_us;
    if (!s.window->full()) {
      since = 0;
    } else if (since == 0) {
      since = now_us;
    }
    return since != 0 && now_us - since >= kParkStalledUs;
  };
  std::vector<Sequence*> stalled;
  for (Sequence* s : state_.active) {
    if (look(*s) && s->state == SequenceState::kRunning) stalled.push_back(s);
  }
  for (Sequence* s : state_.parked) (void)look(*s);
  for (Sequence* s : stalled) BeginPark(state_, *s);
}

void Engine::FinishParking() {
  const std::vector<Sequence*> active = state_.active;
  for (Sequence* s : active) {
    if (s->state == SequenceState::kParking && s->schedule.num_in_flight == 0) Park(state_, *s);
  }
}

void Engine::Sleep(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, limit, [this] {
    return woken_ || inbox_.stop || inbox_.profile || !inbox_.submitted.empty() ||
           !inbox_.cancelled.empty();
  });
}

}  // namespace deepinfer
