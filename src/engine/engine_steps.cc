// What the engine does with finished steps and ended requests.

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/thread_stacks.h"
#include "engine/actions/action.h"
#include "engine/actions/decode.h"
#include "engine/actions/export_state.h"
#include "engine/actions/fork.h"
#include "engine/actions/load_stored.h"
#include "engine/actions/park.h"
#include "engine/actions/prefill.h"
#include "engine/ending.h"
#include "engine/engine.h"
#include "engine/invariants.h"
#include "engine/speculation.h"
#include "engine/step_charges.h"

namespace deepinfer {

namespace {

// Of the record of an engine that hangs: lines that every collector of logs takes whole.
constexpr size_t kStepsInLine = 50;
// The threads that make a step (docs/architecture.md section 4), and how long one may take to tell
// where it is.
constexpr std::string_view kWorkingThreads[] = {"engine", "step", "compute"};
constexpr std::chrono::milliseconds kStackLimit{200};
// Weight of one step in the mean time of decode steps.
constexpr double kSmoothing = 0.05;
// Predictions for routers follow the step times slowly.
constexpr int64_t kStepsPerCosts = 64;

SequenceState TerminalState(FinishReason reason) {
  switch (reason) {
    case FinishReason::kCancelled:
      return SequenceState::kCancelled;
    case FinishReason::kStop:
    case FinishReason::kLength:
    case FinishReason::kHandedOff:
      return SequenceState::kFinished;
    default:
      return SequenceState::kFailed;
  }
}

// Sum over the rows [start, end) of the positions up to theirs.
int64_t AttendedTokens(int64_t start, int64_t end) { return (end - start) * (start + end + 1) / 2; }

// As routers are told of them.
PredictedCosts RouteCosts(const EngineState& state) {
  PromptSteps steps;
  steps.chunk_rows = state.options.max_num_batched_tokens;
  steps.max_context = state.options.max_model_len;
  steps.cuts_at_tail = KeepsSnapshots(state);
  if (state.options.decoder_tail == DecoderTail::kCompact) {
    steps.tail_rows = state.memory->geometry().keep_rows;
  }
  PredictedCosts costs = PredictCosts(state.cost(), steps);
  // A line through two loads.
  constexpr int64_t kFewTokens = kBlockTokens, kManyTokens = 64 * kBlockTokens;
  const int64_t now_us = state.clock->NowUs();
  const double few_us = state.load_time.PredictUs(kFewTokens, now_us);
  const double many_us = state.load_time.PredictUs(kManyTokens, now_us);
  costs.load_us_per_token = (many_us - few_us) / (kManyTokens - kFewTokens);
  costs.load_us = std::max(0.0, few_us - costs.load_us_per_token * kFewTokens);
  return costs;
}

StepKind KindOf(const StepJob& job) {
  if (job.rows.decode_rows == 0) return StepKind::kPrefill;
  return job.rows.prefill_rows == 0 ? StepKind::kDecode : StepKind::kMixed;
}

}  // namespace

void Engine::ReportHang(std::string_view cause, int64_t still_us) const {
  Log(LogLevel::kError, "engine.stalled",
      {{"cause", cause},
       {"still_ms", still_us / 1000},
       {"launched", flight_record_.DescribeLaunched()}});
  for (std::string& steps : flight_record_.DescribeLast(kStepsInLine)) {
    Log(LogLevel::kError, "engine.last_steps", {{"steps", std::move(steps)}});
  }
  // Last, as they are the likeliest to hang too.
  for (const ThreadStack& stack : CollectStacks(kWorkingThreads, kStackLimit)) {
    Log(LogLevel::kError, "engine.stack",
        {{"thread", stack.name},
         {"thread_id", stack.thread_id},
         {"frames", DescribeFrames(stack.frames)}});
  }
}

void Engine::Process(std::unique_ptr<StepJob> job) {
  --num_launched_;
  watchdog_.NoteStep();
  const int64_t begin_us = clock_->NowUs();
  for (const Fork& fork : job->forks) {
    for (Sequence* s : {fork.leader, fork.branch}) {
      --s->schedule.num_in_flight;
      if (IsTerminal(s->state)) Forget(*s);
    }
  }
  if constexpr (kChecksEveryStep) ReportBreach(state_, CheckRows(state_, *job));
  ObserveStepDrafts(state_, job.get());
  ChargeStep(state_, *job);
  // Who has got its last token finds the step counted that made it.
  RecordStep(*job);
  for (StepItem& item : job->items) ProcessItem(&item);
  const int64_t end_us = clock_->NowUs();
  state_.statistics.host_us += end_us - begin_us;
  profiler_.Add(*job, begin_us, end_us);
  CheckStep(state_);
}

void Engine::ProcessItem(StepItem* item) {
  Sequence& s = *item->sequence;
  --s.schedule.num_in_flight;
  if (IsTerminal(s.state)) {
    // It ended while this step was in flight: the row was run for nothing.
    Forget(s);
    return;
  }
  if (!item->status.ok()) {
    const bool is_clients_fault = item->status.code() == StatusCode::kInvalidRequest;
    Log(is_clients_fault ? LogLevel::kInfo : LogLevel::kError, "engine.request_failed",
        {{"request_id", s.request.request_id}, {"status", item->status}});
    FailBranches(s, item->status);
    FinishEarly(s, FinishReason::kError, item->status);
    return;
  }
  std::optional<TokenEvent> event =
      item->is_decode ? ProcessDecode(state_, item) : ProcessPrefill(state_, item);
  if (!item->is_decode) ExportBlocks(state_, s);
  if (s.hands_over_undecided() && s.computed >= s.prefill_end()) return HandOver(s, TokenEvent());
  if (!event.has_value()) return;
  const EndRule rule{state_.model->config().eos_token_id, max_model_len_};
  event->finish =
      EndAfterToken(s.request, rule, s.num_generated, event->ids.back(), &event->stop_token_id);
  if (item->ended_by_grammar) {
    event->finish = FinishReason::kStop;
    event->stop_token_id = event->ids.back();
  }
  if (event->finish != FinishReason::kNone) {
    Finish(s, std::move(*event));
  } else if (s.request.hand_off != HandOffProfile::kNone) {
    HandOver(s, std::move(*event));
  } else {
    Deliver(s, std::move(*event));
  }
}

void Engine::HandOver(Sequence& s, TokenEvent last) {
  last.finish = FinishReason::kHandedOff;
  AddImage(state_, s, &last);
  Finish(s, std::move(last));
}

void Engine::FailBranches(const Sequence& leader, const Status& status) {
  const std::vector<Sequence*> active = state_.active;
  for (Sequence* s : active) {
    if (s->forked_from == leader.id && s->num_generated == 0 && !IsTerminal(s->state)) {
      FinishEarly(*s, FinishReason::kError, status);
    }
  }
}

void Engine::RecordStep(const StepJob& job) {
  flight_record_.Add(job);
  EngineStatistics& st = state_.statistics;
  // Drafts have a price of their own (speculation.h); the model of step times knows rows.
  const auto measured_us = static_cast<double>(job.end_us - job.begin_us - job.draft_us);
  ++st.steps;
  st.prefill_rows += job.rows.prefill_rows;
  st.decode_rows += job.rows.decode_rows;
  for (const StepItem& item : job.items) {
    if (item.ran) st.attended_tokens += AttendedTokens(item.rows.start, item.end());
  }
  st.kiloflops += std::llround(job.rows.flops / 1e3);
  st.attention_kiloflops += std::llround(job.rows.attention_flops / 1e3);
  state_.model_use.Note(job, &st);
  st.step_max_context = job.rows.max_context;
  st.step_us += job.end_us - job.begin_us;
  last_step_end_us_ = job.end_us;
  st.model_us += job.model_us;
  st.grammar_us += job.grammar_us;
  st.draft_us += job.draft_us + job.context_us;
  st.step_seconds[static_cast<size_t>(KindOf(job))].Observe(measured_us / 1e6);
  st.rows_per_step.Observe(static_cast<double>(job.rows.prefill_rows + job.rows.decode_rows));
  if (measured_us <= 0.0) return;
  if (job.predicted_us > 0.0) {
    st.step_prediction_error.Observe(std::abs(job.predicted_us - measured_us) / measured_us);
  }
  state_.step_time.Observe(job.rows, measured_us);
  if (st.steps % kStepsPerCosts == 1) {
    st.costs = RouteCosts(state_);
  }
  if (job.rows.decode_rows > 0) {
    state_.decode_step_us += kSmoothing * (measured_us - state_.decode_step_us);
  }
}

void Engine::Deliver(Sequence& s, TokenEvent event) {
  event.counters = s.counters;
  event.origin = {s.cache.first_row, s.cache.first_floor, s.cache.replay_gen};
  if (event.finish != FinishReason::kNone) {
    event.start_index = s.num_generated - static_cast<int32_t>(event.ids.size());
  }
  if (!event.ids.empty()) {
    if (event.start_index != s.num_emitted) {
      ReportBreach(state_, Internal(s.request.request_id + ": tokens are left out or come twice"));
    }
    s.num_emitted = event.start_index + static_cast<int32_t>(event.ids.size());
  }
  event.credit = s.window->Take();
  s.sink(std::move(event));
}

void Engine::FinishEarly(Sequence& s, FinishReason reason, Status status) {
  if (s.schedule.started_us == 0) {
    s.counters.queue_us = clock_->NowUs() - s.schedule.submitted_us;
  }
  TokenEvent event;
  event.finish = reason;
  event.status = std::move(status);
  Finish(s, std::move(event));
}

void Engine::Finish(Sequence& s, TokenEvent last) {
  if (s.state == SequenceState::kQueued) Dequeue(state_, s);
  if (s.state == SequenceState::kLoading) AbandonLoad(state_, s);
  if (s.state == SequenceState::kParked) {
    std::erase(state_.parked, &s);
    (void)state_.memory->swa().TakeParkImage(std::to_string(s.id), clock_->NowUs());
  }
  s.state = TerminalState(last.finish);
  ReleaseBranches(state_, s);
  if (s.state == SequenceState::kFinished && s.cache.last_edge != nullptr) {
    KeepSnapshot(state_, s, *s.cache.last_edge);
  }
  {
    const std::lock_guard lock(mutex_);
    live_.erase(s.request.request_id);
  }
  // With rows in flight the memory stays until they are over.
  std::unique_ptr<Sequence> ended;
  if (s.schedule.num_in_flight == 0) {
    ReleaseMemory(state_, s);
    ended = std::move(state_.sequences.extract(s.id).mapped());
  }
  Publish();
  Deliver(s, std::move(last));
  // What the sink holds must be gone when Drain returns, not when the sequence is destroyed.
  s.sink = nullptr;
  {
    const std::lock_guard lock(mutex_);
    --num_unfinished_;
  }
  drained_.notify_all();
}

void Engine::Forget(Sequence& s) {
  if (s.schedule.num_in_flight > 0) return;
  ReleaseMemory(state_, s);
  state_.sequences.erase(s.id);
}

void Engine::NoteBusy() {
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  known_until_us_ = std::max(known_until_us_, now_us);
  idle_ = false;
}

void Engine::Publish() {
  EngineStatistics& st = state_.statistics;
  const BlockPoolStats& blocks = state_.memory->blocks().stats();
  int64_t kv_tokens = 0;
  PromptBacklog backlog = state_.queued_prompts;
  int64_t output_tokens = state_.queued_output_tokens;
  int32_t running = static_cast<int32_t>(state_.parked.size());
  st.undelivered_events = 0;
  for (const Sequence* s : state_.parked) st.undelivered_events += s->window->outstanding();
  for (const Sequence* s : state_.active) {
    if (IsTerminal(s->state)) continue;
    st.undelivered_events += s->window->outstanding();
    ++running;
    kv_tokens += s->computed;
    const int64_t prompt_left = std::max(0, s->prompt_len - s->computed);
    backlog.prompts += prompt_left > 0 ? 1 : 0;
    backlog.tokens += prompt_left;
    backlog.squares += prompt_left * s->prompt_len;
    output_tokens += s->request.sampling.max_tokens - s->num_generated;
  }
  st.running = running;
  st.loading = static_cast<int32_t>(state_.loading.size());
  st.waiting = static_cast<int32_t>(state_.queue.size()) + st.loading;
  for (const RequestClass c : kRequestClasses) {
    st.queued_by_class[static_cast<size_t>(c)] = static_cast<int32_t>(state_.queue.size(c));
  }
  st.parked = static_cast<int32_t>(state_.parked.size());
  st.pending =
      static_cast<int32_t>(state_.sequences.size() - state_.active.size() - state_.parked.size()) -
      st.waiting;
  st.kv_tokens = kv_tokens;
  st.waiting_prompt_tokens = backlog.tokens;
  st.costs.queued_us = st.costs.BacklogUs(backlog);
  st.remaining_output_tokens = output_tokens;
  st.blocks_cached = blocks.idle;
  st.blocks_used = blocks.capacity - blocks.free - blocks.idle;
  st.slots_used = st.slots_total - state_.memory->slots().num_free();
  st.blocks_evicted = blocks.reclaimed;
  st.blocks_acquired = blocks.refs_taken;
  st.blocks_released = blocks.refs_released;
  st.slots_acquired = state_.memory->slots().acquired();
  st.slots_released = state_.memory->slots().released();
  const std::lock_guard lock(mutex_);
  published_ = st;
  known_until_us_ = std::max(known_until_us_, last_step_end_us_);
  idle_ = num_launched_ == 0;
}

}  // namespace deepinfer
