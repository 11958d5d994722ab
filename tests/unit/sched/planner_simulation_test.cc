// The planner against a made-up machine in virtual time: random arrivals, lengths, classes, pool
// sizes, shared beginnings, drafts, deadlines and cancellations. Blocks and slots are counted
// exactly; nothing may starve or deadlock.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sched/admission.h"
#include "sched/planner.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

constexpr int64_t kNever = kNoDeadlineUs;
// Rows that run again behind a hit.
constexpr int32_t kReplayRows = kPlanBlockTokens;

struct Simulated {
  int32_t prompt = 0, output = 0;
  int32_t rows = 0;        // computed positions
  int32_t parked_at = -1;  // rows to restore; -1: not parked
  int32_t blocks = 0;      // held
  int32_t shared = 0;      // of these, the leading ones that the index has too
  int32_t indexed = 0;     // leading blocks whose bytes were in the index while it ran
  size_t family = 0;       // of prompts that begin alike
  bool admitted = false, started = false, has_token = false;
  RequestClass request_class = RequestClass::kInteractive;
  int64_t arrival_us = 0, last_parked_us = -100'000'000;
  int64_t queue_deadline_us = kNever, first_deadline_us = kNever, deadline_us = kNever;
  int32_t skipped_steps = 0;
  int64_t skipped_since_us = 0;
  int64_t last_progress_us = 0;

  int32_t total() const { return prompt + output; }
  int64_t prefill_us() const { return prompt * int64_t{100}; }
  // As the engine orders it: its own deadline, or the target of its class.
  int64_t due_us() const {
    constexpr int64_t kTargetsUs[] = {kTtftTargetInteractiveUs, kTtftTargetAgentUs,
                                      kTtftTargetBatchUs};
    return first_deadline_us != kNever
               ? first_deadline_us
               : arrival_us + kTargetsUs[static_cast<size_t>(request_class)];
  }
};

// Prompts with a common beginning of whole blocks, of which the index has the leading ones.
struct Family {
  int32_t length = 0;
  int32_t cached = 0;
};

struct Totals {
  int64_t finished = 0, parks = 0, hits = 0, reclaimed = 0, accepted = 0, refused = 0;
  int64_t late_in_queue = 0, late_first = 0, late_in_all = 0;
};

class World {
 public:
  World(uint32_t seed, Totals* totals) : rng_(seed), totals_(totals) {
    num_blocks_ = 8 + Roll(60);
    num_slots_ = 2 + Roll(12);
    limits_.max_rows = Roll(4) == 0 ? 16 + Roll(64) : 128 + Roll(900);
    limits_.max_sequences = num_slots_;
    // The first family shares nothing.
    for (int32_t length : {0, 2, 1 + Roll(6), 1 + Roll(num_blocks_)}) families_.push_back({length});
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

  // One planner step.
  void Step(const CostModel& cost) {
    if (arrivals_) Arrive();
    Expire();
    const PlannerSnapshot snapshot = MakeSnapshot();
    const StepPlan plan = Plan(snapshot, limits_, cost);
    Check(snapshot, plan);
    CheckOrder(snapshot, plan);
    if (::testing::Test::HasFatalFailure()) return;
    Apply(plan);
    memory_ = plan.memory;
    now_us_ += plan.empty() ? 1000 : static_cast<int64_t>(MachineUs(plan.rows));
    idle_steps_ = plan.empty() && plan.park.empty() && !live_.empty() ? idle_steps_ + 1 : 0;
    ASSERT_LT(idle_steps_, 3) << "work is there, nothing runs";
    if (arrivals_ && Roll(200) == 0 && !live_.empty()) {
      live_.erase(std::next(live_.begin(), Roll(static_cast<int32_t>(live_.size()))));
    }
  }

  int64_t worst_stall_us() const { return worst_stall_us_; }

 private:
  // Evenly among 0 .. n - 1.
  int32_t Roll(int32_t n) { return static_cast<int32_t>(rng_() % static_cast<uint32_t>(n)); }

  void Arrive() {
    // Bursts, so that the queue fills and empties again.
    if (now_us_ / 20'000'000 % 2 == 1 || live_.size() > 60 || Roll(3) != 0) return;
    Simulated s;
    s.request_class = kRequestClasses[rng_() % 3];
    const int32_t longest = num_blocks_ * kPlanBlockTokens;
    const int32_t top = Roll(8) == 0 ? longest - 2 : std::min(longest - 2, 900);
    s.prompt = 1 + Roll(top);
    s.output = std::min(longest - s.prompt, 1 + Roll(60));
    s.arrival_us = s.last_progress_us = now_us_;
    s.family = static_cast<size_t>(Roll(static_cast<int32_t>(families_.size())));
    if (Roll(8) == 0) s.queue_deadline_us = now_us_ + 100'000 + Roll(30'000'000);
    if (Roll(4) == 0) s.first_deadline_us = now_us_ + 100'000 + Roll(5'000'000);
    if (Roll(4) == 0) s.deadline_us = now_us_ + 100'000 + Roll(10'000'000);
    live_.emplace(next_id_++, s);
  }

  // Ends those whose time is over, as the engine does before it plans.
  void Expire() {
    std::erase_if(live_, [&](const auto& entry) {
      const Simulated& s = entry.second;
      const bool in_queue = !s.started && s.queue_deadline_us <= now_us_;
      const bool first = !s.has_token && s.first_deadline_us <= now_us_;
      const bool all = s.deadline_us <= now_us_;
      totals_->late_in_queue += in_queue;
      totals_->late_first += first;
      totals_->late_in_all += all;
      return in_queue || first || all;
    });
  }

  // Leading blocks of the index that somebody holds.
  int32_t Attached(size_t family) const {
    int32_t attached = 0;
    for (const auto& [id, s] : live_) {
      if (s.family == family) attached = std::max(attached, s.shared);
    }
    return attached;
  }
  int32_t FreeBlocks() const {
    int32_t free = num_blocks_;
    for (const Family& f : families_) free -= f.cached;
    for (const auto& [id, s] : live_) free -= s.blocks - s.shared;
    return free;
  }
  // What an admission would share: of a prompt at least two blocks, and not its last row.
  int32_t HitBlocks(const Simulated& s) const {
    const int32_t cached = families_[s.family].cached;
    if (s.parked_at >= 0) return std::min(cached, s.indexed);
    const int32_t hit = std::min(cached, (s.prompt - 1) / kPlanBlockTokens);
    return hit >= 2 ? hit : 0;
  }

  void Describe(int64_t id, const Simulated& s, Holding* h) const {
    h->id = id;
    h->request_class = s.request_class;
    h->held_blocks = s.blocks;
    h->total_blocks = PlanBlocks(s.total());
    h->computed_tokens = s.rows;
    h->last_parked_us = s.last_parked_us;
    h->predicted_remaining_us = (s.total() - s.rows) * int64_t{2000};
  }

  PrefillInput MakePrefill(int64_t id, const Simulated& s) const {
    PrefillInput p;
    Describe(id, s, &p.holding);
    p.arrival_us = s.arrival_us;
    p.deadline_us = s.due_us();
    p.predicted_prefill_us = s.prefill_us();
    p.admitted = s.admitted;
    p.next = s.parked_at >= 0 ? s.parked_at : s.rows;
    p.end = s.parked_at >= 0 ? s.parked_at : s.prompt;
    p.decoder_from = std::max(0, s.prompt - 140);
    p.skipped_steps = s.skipped_steps;
    p.skipped_since_us = s.skipped_since_us;
    if (s.admitted) return p;
    p.hit_blocks = HitBlocks(s);
    p.hit_idle = std::max(0, p.hit_blocks - Attached(s.family));
    if (s.parked_at < 0 && p.hit_blocks > 0) {
      p.next = p.hit_blocks * kPlanBlockTokens - kReplayRows;
    }
    return p;
  }

  PlannerSnapshot MakeSnapshot() {
    PlannerSnapshot snapshot;
    snapshot.now_us = now_us_;
    snapshot.memory = memory_;
    snapshot.pool.free_blocks = FreeBlocks();
    snapshot.pool.free_slots = num_slots_;
    for (size_t f = 0; f < families_.size(); ++f) {
      snapshot.pool.reclaimable_blocks += families_[f].cached - Attached(f);
    }
    for (const auto& [id, s] : live_) {
      snapshot.pool.free_slots -= s.admitted;
      if (s.admitted && s.rows >= s.prompt) {
        DecodeInput d;
        Describe(id, s, &d.holding);
        d.next = s.rows;
        d.num_rows = std::min(1 + Roll(6), s.total() - s.rows);
        d.timed_rows = Roll(1 + d.num_rows);
        snapshot.decode.push_back(d);
      } else {
        snapshot.prefill.push_back(MakePrefill(id, s));
      }
    }
    EXPECT_GE(snapshot.pool.free_blocks, 0);
    EXPECT_GE(snapshot.pool.reclaimable_blocks, 0);
    EXPECT_GE(snapshot.pool.free_slots, 0);
    return snapshot;
  }

  void Check(const PlannerSnapshot& snapshot, const StepPlan& plan) {
    int64_t rows = 0;
    for (const DecodeInput& d : snapshot.decode) {
      const auto planned = std::find_if(plan.decode.begin(), plan.decode.end(),
                                        [&](const DecodeRows& r) { return r.id == d.holding.id; });
      if (planned == plan.decode.end()) continue;
      ASSERT_GE(planned->num_rows, 1);
      ASSERT_LE(planned->num_rows, d.num_rows) << "rows of drafts that nobody makes";
      rows += planned->num_rows;
    }
    for (const PrefillChunk& c : plan.prefill) rows += c.num_rows;
    ASSERT_LE(rows, limits_.max_rows);
    if (!snapshot.prefill.empty() && snapshot.decode.empty() &&
        snapshot.pool.free_slots == num_slots_) {
      ASSERT_FALSE(plan.prefill.empty()) << "an idle engine starts at once";
    }
    for (int64_t id : plan.skipped) {
      Simulated& s = live_.at(id);
      ++s.skipped_steps;
      if (s.skipped_since_us == 0) s.skipped_since_us = now_us_;
    }
  }

  // Nobody enters before one of its class with less slack that was not even tried. Those that
  // waited too long come by arrival, and a floor lets batch requests ahead.
  void CheckOrder(const PlannerSnapshot& snapshot, const StepPlan& plan) {
    const auto slack = [](const PrefillInput& c) { return c.deadline_us - c.predicted_prefill_us; };
    const auto waits = [&](const PrefillInput& c) {
      const RequestClass rank = c.holding.request_class;
      return !c.admitted && rank != RequestClass::kBatch &&
             now_us_ - c.arrival_us <= MaxWaitUs(rank);
    };
    const auto is_planned = [&](int64_t id) {
      return std::any_of(plan.prefill.begin(), plan.prefill.end(),
                         [id](const PrefillChunk& c) { return c.id == id; });
    };
    const auto is_skipped = [&](int64_t id) {
      return std::find(plan.skipped.begin(), plan.skipped.end(), id) != plan.skipped.end();
    };
    std::array<int64_t, kRequestClasses.size()> latest_in;
    latest_in.fill(std::numeric_limits<int64_t>::min());
    for (const PrefillInput& c : snapshot.prefill) {
      // What comes back without rows takes no time, and none is needed for it.
      if (!waits(c) || c.next == c.end || !is_planned(c.holding.id)) continue;
      int64_t& latest = latest_in[static_cast<size_t>(c.holding.request_class)];
      latest = std::max(latest, slack(c));
    }
    for (const PrefillInput& c : snapshot.prefill) {
      if (!waits(c) || is_planned(c.holding.id) || is_skipped(c.holding.id)) continue;
      ASSERT_GE(slack(c), latest_in[static_cast<size_t>(c.holding.request_class)])
          << "one with more time was let in before";
    }
  }

  void Apply(const StepPlan& plan) {
    for (int64_t id : plan.park) {
      Simulated& s = live_.at(id);
      s.parked_at = s.rows;
      s.blocks = s.shared = 0;
      s.admitted = false;
      s.last_parked_us = now_us_;
      ++totals_->parks;
    }
    // Shared blocks are taken before any is reclaimed.
    for (const PrefillChunk& c : plan.prefill) Admit(&live_.at(c.id));
    for (const PrefillChunk& c : plan.prefill) {
      Simulated& s = live_.at(c.id);
      Advance(&s, c.start + c.num_rows, c.start + c.num_rows);
    }
    for (const DecodeRows& d : plan.decode) {
      Simulated& s = live_.at(d.id);
      const int32_t accepted = Roll(d.num_rows);
      totals_->accepted += accepted;
      totals_->refused += d.num_rows - 1 - accepted;
      Advance(&s, s.rows + 1 + accepted, s.rows + d.num_rows);
    }
    Reclaim();
    totals_->finished += static_cast<int64_t>(std::erase_if(
        live_, [](const auto& entry) { return entry.second.rows >= entry.second.total(); }));
  }

  void Admit(Simulated* s) {
    if (s->admitted) return;
    s->shared = s->indexed = HitBlocks(*s);
    s->blocks = std::max(s->shared, PlanBlocks(std::max(0, s->parked_at)));
    totals_->hits += s->shared > 0;
    s->admitted = s->started = true;
    s->parked_at = -1;
    s->skipped_steps = 0;
    s->skipped_since_us = 0;
  }

  // Rows of refused drafts need blocks all the same.
  void Advance(Simulated* s, int32_t rows, int32_t end) {
    s->rows = rows;
    s->blocks = std::max(s->blocks, PlanBlocks(end));
    s->has_token = s->has_token || rows >= s->prompt;
    s->skipped_steps = 0;
    s->skipped_since_us = 0;
    worst_stall_us_ = std::max(worst_stall_us_, now_us_ - s->last_progress_us);
    s->last_progress_us = now_us_;
    // The first who completes a block of the common beginning offers it to all.
    Family& f = families_[s->family];
    const int32_t complete =
        std::min({f.length, s->rows / kPlanBlockTokens, s->prompt / kPlanBlockTokens});
    while (s->shared < complete && s->shared == f.cached) s->indexed = s->shared = ++f.cached;
  }

  // What was handed out beyond the free blocks is taken from the idle ones, deepest first.
  void Reclaim() {
    for (int32_t missing = -FreeBlocks(); missing > 0; --missing) {
      const auto idle = std::find_if(families_.begin(), families_.end(), [&](const Family& f) {
        return f.cached > Attached(static_cast<size_t>(&f - families_.data()));
      });
      ASSERT_TRUE(idle != families_.end()) << "more blocks were handed out than there are";
      --idle->cached;
      ++totals_->reclaimed;
    }
  }

  std::mt19937 rng_;
  Totals* const totals_;
  PlannerLimits limits_;
  PlannerMemory memory_;
  int32_t num_blocks_ = 0, num_slots_ = 0;
  std::vector<Family> families_;
  std::map<int64_t, Simulated> live_;
  int64_t now_us_ = 1, next_id_ = 1;
  int64_t worst_stall_us_ = 0;
  int32_t idle_steps_ = 0;
  bool arrivals_ = true;
};

TEST(PlannerSimulation, NothingStarvesDeadlocksOrExceedsItsPool) {
  const LearnedCost cost;
  constexpr int64_t kStepsPerWorld = 4000;
  Totals totals;
  uint32_t seed = 1;
  for (int64_t steps = 0; steps < DEEPINFER_PLANNER_STEPS; steps += kStepsPerWorld, ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, &totals);
    for (int64_t i = 0; i < kStepsPerWorld; ++i) {
      world.Step(cost.model());
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(world.Drains(cost.model())) << "a request never ends";
    if (HasFatalFailure()) return;
    // The longest wait of a request that went on. The queue holds 60 requests of up to about ten
    // seconds of work each on this machine.
    EXPECT_LT(world.worst_stall_us(), 600'000'000);
  }
  EXPECT_GT(totals.finished, DEEPINFER_PLANNER_STEPS / 200);
  EXPECT_GT(totals.parks, 0) << "pools this small must park somebody";
  // What the machine is about has happened, and not just once.
  const std::pair<const char*, int64_t> counts[] = {
      {"hits", totals.hits},
      {"reclaimed blocks", totals.reclaimed},
      {"accepted drafts", totals.accepted},
      {"refused drafts", totals.refused},
      {"missed queue deadlines", totals.late_in_queue},
      {"missed first-token deadlines", totals.late_first},
      {"missed deadlines", totals.late_in_all},
  };
  for (const auto& [what, count] : counts) EXPECT_GT(count, DEEPINFER_PLANNER_STEPS / 2000) << what;
}

}  // namespace
}  // namespace deepinfer
