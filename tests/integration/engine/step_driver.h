// The parts of an engine without its thread: a test runs one step at a time and changes the state
// between two of them. Steps are synchronous, without drafts.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/actions/action.h"
#include "engine/actions/decode.h"
#include "engine/actions/load_hit.h"
#include "engine/actions/load_stored.h"
#include "engine/actions/park.h"
#include "engine/actions/prefill.h"
#include "engine/engine_state.h"
#include "engine/invariants.h"
#include "engine/planning.h"
#include "engine/step_executor.h"
#include "support/fake_clock.h"

namespace deepinfer {

class StepDriver {
 public:
  struct Answer {
    std::vector<int32_t> ids;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    RequestCounters counters;

    // To the last bit.
    void ExpectSame(const Answer& want, const std::string& where) const {
      EXPECT_EQ(ids, want.ids) << where;
      ExpectSame(logprobs, want.logprobs, where);
      ExpectSame(prompt_logprobs, want.prompt_logprobs, where + " prompt");
    }

   private:
    static void ExpectSame(const std::vector<TokenLogprobs>& got,
                           const std::vector<TokenLogprobs>& want, const std::string& where) {
      ASSERT_EQ(got.size(), want.size()) << where;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].logprob, want[i].logprob) << where << " token " << i;
        ASSERT_EQ(got[i].top, want[i].top) << where << " token " << i;
      }
    }
  };
  using Look = std::function<void(Sequence&)>;

  StepDriver(Model* model, EngineOptions options)
      : options_(Synchronous(std::move(options))),
        state_(model, options_, &clock_, *KvMemory::Create(model, options_), nullptr, nullptr),
        executor_(model, options_, &clock_) {}

  EngineState& state() { return state_; }

  Sequence& Add(EngineRequest request) {
    KeyOrigin origin;
    origin.block_tokens = kBlockTokens;
    auto sequence = std::make_unique<Sequence>(std::move(request), TokenSink(), origin);
    Sequence& s = *sequence;
    s.id = next_id_++;
    s.cache.chain.Extend(s.request.prompt_ids, {});
    state_.sequences.emplace(s.id, std::move(sequence));
    SetTail(state_, s);
    return s;
  }
  Sequence& Queue(EngineRequest request) {
    Sequence& s = Add(std::move(request));
    BeginWaiting(state_, s);
    return s;
  }

  // Plans, runs and processes one step.
  void Step() {
    PlannedStep planned = PlanStep(state_);
    if (planned.job == nullptr) return;
    executor_.Launch(std::move(planned.job));
    const std::unique_ptr<StepJob> job = executor_.Wait();
    for (const Fork& fork : job->forks) {
      --fork.leader->schedule.num_in_flight;
      --fork.branch->schedule.num_in_flight;
    }
    const Status rows = CheckRows(state_, *job);
    ASSERT_TRUE(rows.ok()) << rows.ToString();
    for (StepItem& item : job->items) Process(&item);
    const Status breach = CheckState(state_);
    ASSERT_TRUE(breach.ok()) << breach.ToString();
  }

  // Steps until the sequence has all its tokens; `look` comes after every step before the last.
  Answer Finish(Sequence& s, const Look& look = {}) {
    for (int32_t steps = 0; s.num_generated < s.request.sampling.max_tokens; ++steps) {
      if (look) look(s);
      Step();
      if (steps < kMostSteps) continue;
      ADD_FAILURE() << "the sequence does not end";
      break;
    }
    if (s.cache.last_edge != nullptr) KeepSnapshot(state_, s, *s.cache.last_edge);
    Answer answer = std::move(answers_[s.id]);
    answer.counters = s.counters;
    ReleaseMemory(state_, s);
    state_.sequences.erase(s.id);
    return answer;
  }
  Answer Run(EngineRequest request) { return Finish(Queue(std::move(request))); }

  // Precondition: between steps, and the sequence holds memory.
  void ParkNow(Sequence& s) { BeginPark(state_, s); }
  void LoseImage(const Sequence& s) {
    (void)state_.memory->swa().TakeParkImage(std::to_string(s.id), clock_.NowUs());
  }
  void LoseSnapshots(const std::vector<int32_t>& prompt) {
    KeyOrigin origin;
    origin.block_tokens = kBlockTokens;
    for (const BlockKey& key : ComputeBlockKeys(origin, prompt, {})) {
      state_.memory->swa().EraseSnapshot(key);
    }
  }

 private:
  static constexpr int32_t kMostSteps = 5000;

  static EngineOptions Synchronous(EngineOptions options) {
    options.async_scheduling = false;
    options.speculation.enabled = false;
    return options;
  }

  void Process(StepItem* item) {
    Sequence& s = *item->sequence;
    --s.schedule.num_in_flight;
    ASSERT_TRUE(item->status.ok()) << item->status.ToString();
    std::optional<TokenEvent> event =
        item->is_decode ? ProcessDecode(state_, item) : ProcessPrefill(state_, item);
    if (!event) return;
    Answer& answer = answers_[s.id];
    answer.ids.insert(answer.ids.end(), event->ids.begin(), event->ids.end());
    for (auto [from, to] : {std::pair{&event->logprobs, &answer.logprobs},
                            std::pair{&event->prompt_logprobs, &answer.prompt_logprobs}}) {
      to->insert(to->end(), std::make_move_iterator(from->begin()),
                 std::make_move_iterator(from->end()));
    }
  }

  FakeClock clock_;
  EngineOptions options_;
  EngineState state_;
  StepExecutor executor_;
  std::map<int64_t, Answer> answers_;
  int64_t next_id_ = 1;
};

}  // namespace deepinfer
