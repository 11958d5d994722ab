// The planner against a made-up machine in virtual time: random arrivals, lengths, classes, pool
// sizes and cancellations. Blocks and slots are counted exactly; nothing may starve or deadlock.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "sched/admission.h"
#include "sched/planner.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

struct Simulated {
  int32_t prompt = 0, output = 0;
  int32_t rows = 0;        // computed positions
  int32_t parked_at = -1;  // rows to restore; -1: not parked
  bool admitted = false;
  RequestClass request_class = RequestClass::kInteractive;
  int64_t arrival_us = 0, last_parked_us = -100'000'000;
  int32_t skipped_steps = 0;
  int64_t skipped_since_us = 0;
  int64_t last_progress_us = 0;

  int32_t total() const { return prompt + output; }
  int32_t held() const { return admitted ? PlanBlocks(rows) : 0; }
};

class World {
 public:
  explicit World(uint32_t seed) : rng_(seed) {
    num_blocks_ = 8 + static_cast<int32_t>(rng_() % 60);
    num_slots_ = 2 + static_cast<int32_t>(rng_() % 12);
    limits_.max_rows = rng_() % 4 == 0 ? 16 + static_cast<int32_t>(rng_() % 64)
                                       : 128 + static_cast<int32_t>(rng_() % 900);
    limits_.max_sequences = num_slots_;
  }

  // Whether all that is there comes to its end once nothing arrives any more.
  bool Drains(const CostModel& cost) {
    arrivals_ = false;
    // A step yields at least a row; parked ones are restored without any.
    int64_t steps_left = 1000;
    for (const auto& [id, s] : live_) steps_left += 20 * s.total();
    while (!live_.empty() && steps_left-- > 0 && !::testing::Test::HasFatalFailure()) Step(cost);
    return live_.empty();
  }

  // One planner step; the time that passed.
  void Step(const CostModel& cost) {
    if (arrivals_) Arrive();
    const PlannerSnapshot snapshot = MakeSnapshot();
    const StepPlan plan = Plan(snapshot, limits_, cost);
    Check(snapshot, plan);
    Apply(plan);
    memory_ = plan.memory;
    now_us_ += plan.empty() ? 1000 : static_cast<int64_t>(MachineUs(plan.rows));
    idle_steps_ = plan.empty() && plan.park.empty() && !live_.empty() ? idle_steps_ + 1 : 0;
    ASSERT_LT(idle_steps_, 3) << "work is there, nothing runs";
    if (arrivals_ && rng_() % 200 == 0 && !live_.empty()) {
      live_.erase(std::next(live_.begin(), static_cast<int64_t>(rng_() % live_.size())));
    }
  }

  int64_t num_finished() const { return num_finished_; }
  int64_t num_parks() const { return num_parks_; }
  int64_t worst_stall_us() const { return worst_stall_us_; }

 private:
  void Arrive() {
    // Bursts, so that the queue fills and empties again.
    if (now_us_ / 20'000'000 % 2 == 1 || live_.size() > 60 || rng_() % 3 != 0) return;
    Simulated s;
    s.request_class = kRequestClasses[rng_() % 3];
    const int32_t longest = num_blocks_ * kPlanBlockTokens;
    const int32_t top = rng_() % 8 == 0 ? longest - 2 : std::min(longest - 2, 900);
    s.prompt = 1 + static_cast<int32_t>(rng_() % static_cast<uint32_t>(top));
    s.output = std::min(longest - s.prompt, 1 + static_cast<int32_t>(rng_() % 60));
    s.arrival_us = s.last_progress_us = now_us_;
    live_.emplace(next_id_++, s);
  }

  void Describe(int64_t id, const Simulated& s, Holding* h) const {
    h->id = id;
    h->request_class = s.request_class;
    h->held_blocks = s.held();
    h->total_blocks = PlanBlocks(s.total());
    h->computed_tokens = s.rows;
    h->last_parked_us = s.last_parked_us;
    h->predicted_remaining_us = (s.total() - s.rows) * int64_t{2000};
  }

  PlannerSnapshot MakeSnapshot() const {
    PlannerSnapshot snapshot;
    snapshot.now_us = now_us_;
    snapshot.memory = memory_;
    snapshot.pool.free_blocks = num_blocks_;
    snapshot.pool.free_slots = num_slots_;
    for (const auto& [id, s] : live_) {
      snapshot.pool.free_blocks -= s.held();
      snapshot.pool.free_slots -= s.admitted;
      if (s.admitted && s.rows >= s.prompt) {
        DecodeInput d;
        Describe(id, s, &d.holding);
        d.next = s.rows;
        snapshot.decode.push_back(d);
        continue;
      }
      PrefillInput p;
      Describe(id, s, &p.holding);
      p.arrival_us = s.arrival_us;
      p.admitted = s.admitted;
      p.next = s.parked_at >= 0 ? s.parked_at : s.rows;
      p.end = s.parked_at >= 0 ? s.parked_at : s.prompt;
      p.decoder_from = std::max(0, s.prompt - 140);
      p.skipped_steps = s.skipped_steps;
      p.skipped_since_us = s.skipped_since_us;
      snapshot.prefill.push_back(p);
    }
    EXPECT_GE(snapshot.pool.free_blocks, 0);
    EXPECT_GE(snapshot.pool.free_slots, 0);
    return snapshot;
  }

  void Check(const PlannerSnapshot& snapshot, const StepPlan& plan) {
    ASSERT_LE(plan.rows.prefill_rows + plan.rows.decode_rows, limits_.max_rows);
    if (!snapshot.prefill.empty() && snapshot.decode.empty() && snapshot.pool.free_slots > 0 &&
        snapshot.pool.free_blocks == num_blocks_) {
      ASSERT_FALSE(plan.prefill.empty()) << "an idle engine starts at once";
    }
    for (int64_t id : plan.skipped) {
      Simulated& s = live_.at(id);
      ++s.skipped_steps;
      if (s.skipped_since_us == 0) s.skipped_since_us = now_us_;
    }
  }

  void Apply(const StepPlan& plan) {
    for (int64_t id : plan.park) {
      Simulated& s = live_.at(id);
      s.parked_at = s.rows;
      s.admitted = false;
      s.last_parked_us = now_us_;
      ++num_parks_;
    }
    for (const PrefillChunk& c : plan.prefill) {
      Simulated& s = live_.at(c.id);
      s.admitted = true;
      s.rows = c.start + c.num_rows;
      s.parked_at = -1;
      s.skipped_steps = 0;
      s.skipped_since_us = 0;
      Progress(&s);
    }
    for (const DecodeRows& d : plan.decode) {
      Simulated& s = live_.at(d.id);
      ++s.rows;
      Progress(&s);
      if (s.rows < s.total()) continue;
      live_.erase(d.id);
      ++num_finished_;
    }
  }

  void Progress(Simulated* s) {
    worst_stall_us_ = std::max(worst_stall_us_, now_us_ - s->last_progress_us);
    s->last_progress_us = now_us_;
  }

  std::mt19937 rng_;
  PlannerLimits limits_;
  PlannerMemory memory_;
  int32_t num_blocks_ = 0, num_slots_ = 0;
  std::map<int64_t, Simulated> live_;
  int64_t now_us_ = 1, next_id_ = 1;
  int64_t num_finished_ = 0, num_parks_ = 0, worst_stall_us_ = 0;
  int32_t idle_steps_ = 0;
  bool arrivals_ = true;
};

TEST(PlannerSimulation, NothingStarvesDeadlocksOrExceedsItsPool) {
  const LearnedCost cost;
  constexpr int64_t kStepsPerWorld = 4000;
  int64_t finished = 0, parks = 0;
  uint32_t seed = 1;
  for (int64_t steps = 0; steps < DEEPINFER_PLANNER_STEPS; steps += kStepsPerWorld, ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    for (int64_t i = 0; i < kStepsPerWorld; ++i) {
      world.Step(cost.model());
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(world.Drains(cost.model())) << "a request never ends";
    // The longest wait of a request that went on. The queue holds 60 requests of up to about ten
    // seconds of work each on this machine.
    EXPECT_LT(world.worst_stall_us(), 600'000'000);
    finished += world.num_finished();
    parks += world.num_parks();
  }
  EXPECT_GT(finished, DEEPINFER_PLANNER_STEPS / 200);
  EXPECT_GT(parks, 0) << "pools this small must park somebody";
}

}  // namespace
}  // namespace deepinfer
