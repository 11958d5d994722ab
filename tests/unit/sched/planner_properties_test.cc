// What every plan keeps, whatever the snapshot.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "sched/admission.h"
#include "sched/planner.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

struct Case {
  PlannerSnapshot snapshot;
  PlannerLimits limits;
};

int32_t Between(int32_t low, int32_t high) { return *rc::gen::inRange(low, high + 1); }

void Fill(Holding* h, int64_t id, int32_t rows_held) {
  h->id = id;
  h->request_class = kRequestClasses[static_cast<size_t>(Between(0, 2))];
  h->held_blocks = PlanBlocks(rows_held);
  h->total_blocks = h->held_blocks + Between(0, 8);
  h->computed_tokens = Between(0, 5000);
  h->last_parked_us = Between(-10'000'000, 1'000'000);
  h->predicted_remaining_us = Between(0, 20'000'000);
  h->can_park = Between(0, 9) > 0;
}

Case AnyCase() {
  Case c;
  PlannerSnapshot& s = c.snapshot;
  s.now_us = Between(0, 200'000'000);
  int64_t id = 1;
  for (int32_t n = Between(0, 12); n > 0; --n) {
    DecodeInput d;
    d.next = Between(1, 2000);
    Fill(&d.holding, id++, d.next);
    d.num_rows = Between(1, 6);
    d.can_run = Between(0, 5) > 0;
    s.decode.push_back(d);
  }
  for (int32_t n = Between(0, 16); n > 0; --n) {
    PrefillInput p;
    p.admitted = Between(0, 3) == 0;
    p.next = Between(0, 3) == 0 ? 0 : 128 * Between(0, 12);
    p.end = p.next + Between(p.admitted ? 0 : 1, 2000);
    Fill(&p.holding, id++, p.admitted ? p.next : 0);
    p.holding.total_blocks = PlanBlocks(p.end) + Between(0, 4);
    p.decoder_from = std::max(0, p.end - 140);
    if (!p.admitted) {
      p.hit_blocks = PlanBlocks(p.next);
      p.hit_idle = Between(0, p.hit_blocks);
    }
    p.arrival_us = Between(0, 200'000'000);
    if (Between(0, 1) == 0) p.deadline_us = Between(0, 200'000'000);
    if (Between(0, 2) == 0) p.cuts = {128 * Between(0, 20)};
    p.skipped_steps = Between(0, 50);
    p.skipped_since_us = Between(0, 1) * Between(1, 200'000'000);
    s.prefill.push_back(p);
  }
  s.pool.free_blocks = Between(0, 30);
  s.pool.reclaimable_blocks = Between(0, 30);
  s.pool.free_slots = Between(0, 8);
  s.memory.steps_since_prefill = Between(0, 6);
  s.memory.last_decoded_id = Between(0, 14);
  s.memory.batch_credit_rows = Between(0, 1024);
  c.limits.max_rows = Between(1, 1024);
  c.limits.max_sequences = Between(1, 24);
  return c;
}

class PlannerProperties : public ::testing::Test {
 protected:
  LearnedCost cost_;
};

TEST_F(PlannerProperties, EveryPlanKeepsItsLimits) {
  EXPECT_TRUE(rc::check("a plan keeps rows, blocks, slots, order and alignment", [&] {
    const Case c = AnyCase();
    const PlannerSnapshot& s = c.snapshot;
    const StepPlan plan = Plan(s, c.limits, cost_.model());
    int64_t rows = 0, blocks = 0, admitted = 0;
    std::set<int64_t> seen(plan.park.begin(), plan.park.end());
    RC_ASSERT(seen.size() == plan.park.size());
    for (const DecodeRows& d : plan.decode) {
      RC_ASSERT(seen.insert(d.id).second);
      const auto in = std::find_if(s.decode.begin(), s.decode.end(),
                                   [&](const auto& x) { return x.holding.id == d.id; });
      RC_ASSERT(in != s.decode.end());
      RC_ASSERT(in->can_run && d.num_rows >= 1 && d.num_rows <= in->num_rows);
      rows += d.num_rows;
      blocks += std::max(0, PlanBlocks(in->next + d.num_rows) - in->holding.held_blocks);
    }
    for (const PrefillChunk& p : plan.prefill) {
      RC_ASSERT(seen.insert(p.id).second);
      const auto in = std::find_if(s.prefill.begin(), s.prefill.end(),
                                   [&](const auto& x) { return x.holding.id == p.id; });
      RC_ASSERT(in != s.prefill.end());
      RC_ASSERT(p.start == in->next);
      const int32_t end = p.start + p.num_rows;
      RC_ASSERT(end <= in->end);
      RC_ASSERT(p.num_rows > 0 || in->next == in->end);
      const bool at_cut = std::find(in->cuts.begin(), in->cuts.end(), end) != in->cuts.end();
      RC_ASSERT(end == in->end || at_cut || end % 2 == 0 || c.limits.max_rows == 1);
      for (int32_t cut : in->cuts) RC_ASSERT(cut <= p.start || cut >= end);
      rows += p.num_rows;
      blocks +=
          std::max(0, PlanBlocks(end) - (in->admitted ? in->holding.held_blocks : in->hit_blocks));
      if (!in->admitted) {
        ++admitted;
        blocks += in->hit_idle;
      }
    }
    RC_ASSERT(rows <= c.limits.max_rows);
    RC_ASSERT(blocks <= s.pool.available());
    RC_ASSERT(admitted <= s.pool.free_slots);
    RC_ASSERT(plan.skipped.size() <= static_cast<size_t>(c.limits.max_skips));
    for (int64_t id : plan.park) {
      const auto check = [&](const Holding& h) {
        if (h.id == id) RC_ASSERT(h.can_park && h.held_blocks > 0);
      };
      for (const DecodeInput& d : s.decode) check(d.holding);
      for (const PrefillInput& p : s.prefill) check(p.holding);
    }
  }));
}

TEST_F(PlannerProperties, EqualSnapshotsGiveEqualPlansInAnyOrderOfTheirInputs) {
  EXPECT_TRUE(rc::check("planning is a pure function of a set", [&] {
    const Case c = AnyCase();
    PlannerSnapshot shuffled = c.snapshot;
    std::reverse(shuffled.decode.begin(), shuffled.decode.end());
    std::reverse(shuffled.prefill.begin(), shuffled.prefill.end());
    const StepPlan a = Plan(c.snapshot, c.limits, cost_.model());
    const StepPlan b = Plan(shuffled, c.limits, cost_.model());
    RC_ASSERT(a.park == b.park);
    RC_ASSERT(a.skipped == b.skipped);
    RC_ASSERT(a.decode.size() == b.decode.size());
    RC_ASSERT(a.prefill.size() == b.prefill.size());
    for (size_t i = 0; i < a.decode.size(); ++i) RC_ASSERT(a.decode[i].id == b.decode[i].id);
    for (size_t i = 0; i < a.prefill.size(); ++i) {
      RC_ASSERT(a.prefill[i].id == b.prefill[i].id);
      RC_ASSERT(a.prefill[i].num_rows == b.prefill[i].num_rows);
    }
    RC_ASSERT(a.predicted_us == b.predicted_us);
  }));
}

}  // namespace
}  // namespace deepinfer
