// One rule of the planner per test (architecture.md §7).

#include "sched/planner.h"

#include <gtest/gtest.h>

#include "sched/admission.h"
#include "sched/victims.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

class PlannerTest : public ::testing::Test {
 protected:
  StepPlan Run(const PlannerSnapshot& s) { return Plan(s, limits_, cost_.model()); }
  static std::vector<int64_t> PrefillIds(const StepPlan& plan) {
    std::vector<int64_t> ids;
    for (const PrefillChunk& c : plan.prefill) ids.push_back(c.id);
    return ids;
  }

  LearnedCost cost_;
  PlannerLimits limits_;
};

TEST_F(PlannerTest, AnIdleEngineStartsARequestWithTheWholeRowBudget) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Waiting(1, 2000)};
  const StepPlan plan = Run(s);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].num_rows, 512);
  EXPECT_EQ(plan.rows.prefill_rows, 512);
  EXPECT_GT(plan.predicted_us, 0.0);
}

TEST_F(PlannerTest, ALongPromptRunsTheDecoderOnItsTailOnly) {
  constexpr int32_t kPrompt = 128 * 1024;
  limits_.max_rows = 8192;
  int64_t rows = 0, tail_rows = 0;
  int32_t next = 0;
  while (next < kPrompt) {
    PlannerSnapshot s = Snapshot(2000);
    s.prefill = {next == 0 ? Waiting(1, kPrompt) : Continuing(1, next, kPrompt)};
    const StepPlan plan = Run(s);
    ASSERT_EQ(plan.prefill.size(), 1u);
    ASSERT_GT(plan.prefill[0].num_rows, 0);
    next += plan.prefill[0].num_rows;
    rows += plan.rows.prefill_rows;
    tail_rows += plan.rows.tail_rows;
  }
  EXPECT_EQ(rows, kPrompt);
  EXPECT_EQ(tail_rows, 140);
}

TEST_F(PlannerTest, APromptThatIsSplitAtTheCutCostsTogetherWhatItCostsInOnePlace) {
  const auto add = [this](auto&& what) {
    StepRows rows;
    what(cost_.model(), &rows);
    return rows;
  };
  const StepRows whole =
      add([](const CostModel& m, StepRows* r) { m.AddPrefill(1000, 1140, 1000, r); });
  const StepRows below =
      add([](const CostModel& m, StepRows* r) { m.AddPrefill(1000, 1140, 1140, r); });
  const StepRows above =
      add([](const CostModel& m, StepRows* r) { m.AddDecoderRows(1000, 1140, r); });
  EXPECT_EQ(below.prefill_rows, 140);
  EXPECT_EQ(below.tail_rows, 0);
  EXPECT_EQ(above.prefill_rows, 0);
  EXPECT_EQ(above.tail_rows, 140);
  EXPECT_DOUBLE_EQ(below.flops + above.flops, whole.flops);
  EXPECT_DOUBLE_EQ(below.index_pairs + above.index_pairs, whole.index_pairs);
  // A plan counts it likewise.
  PlannerSnapshot s = Snapshot();
  s.prefill = {Continuing(1, 1000, 1140)};
  s.prefill[0].decoder_from = 1000;
  s.prefill[0].only_decoder = true;
  const StepPlan plan = Run(s);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].num_rows, 140);
  EXPECT_EQ(plan.rows.prefill_rows, 0);
  EXPECT_DOUBLE_EQ(plan.rows.flops, above.flops);
}

TEST_F(PlannerTest, DecodeRowsComeFirstAndPrefillKeepsToTheTargetedStepTime) {
  PlannerSnapshot s = Snapshot();
  for (int64_t id = 1; id <= 4; ++id) s.decode.push_back(Decoding(id, 1000));
  s.prefill = {Waiting(9, 20000)};
  limits_.max_rows = 8192;
  const StepPlan plan = Run(s);
  EXPECT_EQ(plan.decode.size(), 4u);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_LE(plan.predicted_us, static_cast<double>(limits_.tpot_target_us));
  // A whole block more would not have fitted.
  StepRows more = plan.rows;
  cost_.model().AddPrefill(plan.prefill[0].num_rows, plan.prefill[0].num_rows + 128, 20000, &more);
  EXPECT_GT(cost_.time().Predict(more), limits_.prefill_share_max * 50'000);
}

TEST_F(PlannerTest, AQuantumRunsEveryFourthStepHoweverSlowDecodingIs) {
  PlannerSnapshot s = Snapshot();
  for (int64_t id = 1; id <= 200; ++id) s.decode.push_back(Decoding(id, 1000));
  s.prefill = {Waiting(900, 20000)};
  limits_.max_sequences = 300;
  std::vector<int64_t> rows;
  for (int step = 0; step < 8; ++step) {
    const StepPlan plan = Run(s);
    rows.push_back(plan.rows.prefill_rows);
    s.memory = plan.memory;
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 0, 0, 128, 0, 0, 0, 128}));
}

// Where decoding alone takes longer than the target.
TEST_F(PlannerTest, ALongPromptLeavesTheQuantumToMoreUrgentOnes) {
  PlannerSnapshot s = Snapshot();
  for (int64_t id = 1; id <= 200; ++id) s.decode.push_back(Decoding(id, 1000));
  s.prefill = {Continuing(900, 256, 20'000), Waiting(901, 20)};
  limits_.max_sequences = 300;
  s.memory.steps_since_prefill = limits_.prefill_every;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{900})) << "of one class";
  s.prefill[0].holding.request_class = RequestClass::kBatch;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{901}));
  s.memory.batch_credit_rows = limits_.min_prefill_rows;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{900})) << "its floor is due";
  s.memory.batch_credit_rows = 0;
  // Older than its class may wait: the first of all again.
  s.now_us = kMaxWaitBatchUs + 10;
  s.prefill[1].arrival_us = s.now_us;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{900}));
}

TEST_F(PlannerTest, WhatComesBackWithoutRowsDoesNotWaitForAQuantum) {
  PlannerSnapshot s = Snapshot();
  for (int64_t id = 1; id <= 200; ++id) s.decode.push_back(Decoding(id, 1000));
  s.prefill = {Continuing(900, 256, 20'000), Waiting(901, 20)};
  s.prefill[1].next = s.prefill[1].end;
  limits_.max_sequences = 300;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{901}));
}

TEST_F(PlannerTest, SeveralUnfinishedChunksShareAStepAndEndOnBlockEdges) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Continuing(1, 128, 300), Waiting(2, 3000), Waiting(3, 3000)};
  limits_.max_rows = 700;
  const StepPlan plan = Run(s);
  ASSERT_EQ(plan.prefill.size(), 3u);
  EXPECT_EQ(plan.prefill[0].num_rows, 172);  // to the end of its prompt
  EXPECT_EQ(plan.prefill[1].num_rows, 512);  // 528 would fit, 512 is an edge
  EXPECT_EQ(plan.prefill[2].num_rows, 16);
}

TEST_F(PlannerTest, ChunksShorterThanABlockEndOnEvenPositions) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Waiting(1, 300)};
  limits_.max_rows = 7;
  EXPECT_EQ(Run(s).prefill[0].num_rows, 6);
  limits_.max_rows = 1;
  EXPECT_EQ(Run(s).prefill[0].num_rows, 1);
}

TEST_F(PlannerTest, ChunksEndAtCuts) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Waiting(1, 700)};
  s.prefill[0].cuts = {256, 384};
  EXPECT_EQ(Run(s).prefill[0].num_rows, 256);
  s.prefill[0] = Continuing(1, 256, 700);
  s.prefill[0].cuts = {256, 384};
  EXPECT_EQ(Run(s).prefill[0].num_rows, 128);
}

TEST_F(PlannerTest, OrderIsContinuingThenClassThenSlackThenArrival) {
  PlannerSnapshot s = Snapshot();
  s.now_us = 1'000'000;
  s.prefill = {Waiting(1, 10, 5), Waiting(2, 10, 4), Waiting(3, 10, 3), Waiting(4, 10, 2),
               Continuing(5, 128, 200)};
  s.prefill[0].holding.request_class = RequestClass::kBatch;
  s.prefill[1].holding.request_class = RequestClass::kAgent;
  s.prefill[2].deadline_us = 2'000'000;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{5, 3, 4, 2, 1}));
}

TEST_F(PlannerTest, WhatWentOnBeforeAMoreUrgentOneCameLeavesItRoomInTheStep) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Continuing(1, 256, 4000), Waiting(2, 300)};
  EXPECT_EQ(Run(s).prefill.size(), 1u) << "of one class the first goes on with all rows";
  s.prefill[0].holding.request_class = RequestClass::kBatch;
  const StepPlan plan = Run(s);
  ASSERT_EQ(PrefillIds(plan), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(plan.prefill[0].num_rows, limits_.min_prefill_rows);
  EXPECT_EQ(plan.prefill[1].num_rows, 300);
}

// The step that an interactive request finds under way is a short one.
TEST_F(PlannerTest, AStepOfBatchWorkAloneTakesNoLongerThanTheTarget) {
  PlannerSnapshot s = Snapshot();
  s.prefill = {Continuing(1, 256, 4000)};
  limits_.tpot_target_us = 12'000;
  EXPECT_EQ(Run(s).prefill[0].num_rows, 512);
  s.prefill[0].holding.request_class = RequestClass::kBatch;
  const StepPlan plan = Run(s);
  EXPECT_EQ(plan.prefill[0].num_rows, 256);
  EXPECT_LE(plan.predicted_us, 12'000);
  limits_.tpot_target_us = 1'000;
  EXPECT_EQ(Run(s).prefill[0].num_rows, limits_.min_prefill_rows) << "it goes on at any rate";
}

TEST_F(PlannerTest, AgeBeatsClass) {
  PlannerSnapshot s = Snapshot();
  s.now_us = kMaxWaitBatchUs + 10;
  s.prefill = {Waiting(1, 10, s.now_us - 5), Waiting(2, 10, 0)};
  s.prefill[1].holding.request_class = RequestClass::kBatch;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{2, 1}));
}

TEST_F(PlannerTest, WhatDoesNotFitIsPassedOver) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/2);
  s.decode = {Decoding(50, 100)};
  s.prefill = {Continuing(1, 256, 1000), Waiting(2, 100, 1), Waiting(3, 100, 2)};
  s.pool.free_blocks = 3;
  s.pool.free_slots = 1;
  const StepPlan plan = Run(s);
  EXPECT_EQ(PrefillIds(plan).front(), 1);
  EXPECT_EQ(plan.skipped.back(), 3) << "no slot is left for it";
}

TEST_F(PlannerTest, LooksAtNoMoreThanMaxSkipsCandidatesThatDoNotFit) {
  PlannerSnapshot s = Snapshot(1000, /*free_slots=*/0);
  for (int64_t id = 1; id <= 30; ++id) s.prefill.push_back(Waiting(id, 100, id));
  const StepPlan plan = Run(s);
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.skipped.size(), 8u);
}

TEST_F(PlannerTest, BehindABarrierOnlyThoseThatEndInTimePass) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/4);
  s.decode = {Decoding(50, 8 * 128 - 1)};
  s.decode[0].holding.predicted_remaining_us = 3'000'000;
  s.decode[0].holding.can_park = false;
  // Needs 12 blocks at its longest, which no parking can give while 8 are held.
  s.prefill = {Waiting(1, 11 * 128, 1), Waiting(2, 100, 2), Waiting(3, 100, 3)};
  s.prefill[1].holding.predicted_remaining_us = 9'000'000;
  s.prefill[2].holding.predicted_remaining_us = 2'000'000;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{2, 3})) << "not a barrier yet";
  s.prefill[0].skipped_steps = kBarrierSteps + 1;
  StepPlan plan = Run(s);
  EXPECT_EQ(PrefillIds(plan), (std::vector<int64_t>{3}));
  EXPECT_EQ(plan.skipped, (std::vector<int64_t>{1, 2}));
  s.prefill[0].skipped_steps = 1;
  s.prefill[0].skipped_since_us = s.now_us - kBarrierUs - 1;
  EXPECT_EQ(PrefillIds(Run(s)), (std::vector<int64_t>{3}));
}

TEST_F(PlannerTest, ShortOfBlocksTheLowestClassWithTheLeastWorkIsParked) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/1);
  s.decode = {Decoding(1, 256), Decoding(2, 256), Decoding(3, 300), Decoding(4, 400)};
  s.decode[0].holding.held_blocks = s.decode[1].holding.held_blocks = 2;  // both at an edge
  s.decode[2].holding.request_class = RequestClass::kBatch;
  s.decode[3].holding.request_class = RequestClass::kBatch;
  const StepPlan plan = Run(s);
  EXPECT_EQ(plan.park, (std::vector<int64_t>{3}));
  ASSERT_EQ(plan.decode.size(), 2u) << "one edge fits now, the other when the blocks are back";
  EXPECT_EQ(plan.decode[0].id, 1);
  EXPECT_EQ(plan.decode[1].id, 4);
}

TEST_F(PlannerTest, BlocksOnTheirWayBackParkNobodyElse) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/0);
  s.decode = {Decoding(1, 256), Decoding(2, 300)};
  s.decode[0].holding.held_blocks = 2;
  EXPECT_EQ(Run(s).park.size(), 1u);
  s.pool.returning_blocks = 1;
  EXPECT_TRUE(Run(s).park.empty());
}

TEST_F(PlannerTest, SequencesParkedBeforeOrAboutToEndAreSpared) {
  Holding a, b, c;
  a.id = 1, b.id = 2, c.id = 3;
  for (Holding* h : {&a, &b, &c}) {
    h->held_blocks = 1;
    h->predicted_remaining_us = 10'000'000;
  }
  a.last_parked_us = 1'000'000;
  b.predicted_remaining_us = 10;
  c.computed_tokens = 1'000'000;
  const std::vector<const Holding*> all = {&a, &b, &c}, spared = {&a, &b};
  EXPECT_EQ(ChooseVictim(all, 2'000'000)->id, 3);
  EXPECT_NE(ChooseVictim(spared, 2'000'000), nullptr) << "spared is not exempt";
  a.can_park = b.can_park = false;
  EXPECT_EQ(ChooseVictim(spared, 2'000'000), nullptr);
}

TEST_F(PlannerTest, TheOnlySequenceIsNeverParked) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/0);
  s.decode = {Decoding(1, 256)};
  s.decode[0].holding.held_blocks = 2;
  EXPECT_TRUE(Run(s).park.empty());
}

TEST_F(PlannerTest, TwoPromptsThatBlockEachOtherAreResolvedByParkingOne) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/0);
  s.prefill = {Continuing(1, 512, 1000), Continuing(2, 512, 1000)};
  const StepPlan plan = Run(s);
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.park, (std::vector<int64_t>{2}));
}

TEST_F(PlannerTest, AParkedSequenceGetsItsMemoryBackWithoutRows) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/3);
  s.prefill = {Waiting(1, 300)};
  s.prefill[0].next = s.prefill[0].end = 300;
  const StepPlan plan = Run(s);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].num_rows, 0);
  s.pool.free_blocks = 2;
  EXPECT_TRUE(Run(s).empty());
}

// Else it would be parked again at once, and come back before those that could go on meanwhile.
TEST_F(PlannerTest, AParkedSequenceWithFullBlocksWaitsForTheOneOfItsNextToken) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/3);
  s.prefill = {Waiting(1, 3 * 128)};
  s.prefill[0].next = s.prefill[0].end;
  EXPECT_TRUE(Run(s).empty());
  s.pool.free_blocks = 4;
  EXPECT_EQ(Run(s).prefill.size(), 1u);
}

TEST_F(PlannerTest, ReclaimableBlocksOfItsOwnHitAreNotCountedTwice) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/0);
  s.pool.reclaimable_blocks = 2;
  s.prefill = {Waiting(1, 3 * 128)};
  s.prefill[0].next = 256;
  s.prefill[0].hit_blocks = s.prefill[0].hit_idle = 2;
  EXPECT_TRUE(Run(s).empty());
  s.pool.free_blocks = 1;
  EXPECT_EQ(Run(s).prefill.size(), 1u);
}

TEST_F(PlannerTest, RotatesDecodeRowsThatExceedTheStep) {
  PlannerSnapshot s = Snapshot();
  for (int64_t id = 1; id <= 5; ++id) s.decode.push_back(Decoding(id, 100));
  limits_.max_rows = 2;
  std::vector<int64_t> served;
  for (int step = 0; step < 5; ++step) {
    const StepPlan plan = Run(s);
    for (const DecodeRows& d : plan.decode) served.push_back(d.id);
    s.memory = plan.memory;
  }
  std::sort(served.begin(), served.end());
  EXPECT_EQ(served, (std::vector<int64_t>{1, 1, 2, 2, 3, 3, 4, 4, 5, 5}));
}

TEST_F(PlannerTest, BatchRequestsGetTheirFloorWhileInteractiveOnesNeverEnd) {
  PlannerSnapshot s = Snapshot(100000, 1000);
  limits_.max_sequences = 1000;
  int64_t batch_rows = 0, all_rows = 0, next_id = 2;
  PrefillInput batch = Waiting(1, 1 << 20);
  batch.holding.request_class = RequestClass::kBatch;
  s.prefill = {batch};
  for (int step = 0; step < 2000; ++step) {
    // Fresh interactive prompts that fill every step; none continues into the next.
    s.prefill.resize(1);
    for (int i = 0; i < 4; ++i) s.prefill.push_back(Waiting(next_id++, 128, s.now_us));
    const StepPlan plan = Run(s);
    for (const PrefillChunk& c : plan.prefill) {
      all_rows += c.num_rows;
      if (c.id == 1) {
        batch_rows += c.num_rows;
        s.prefill[0].next += c.num_rows;
      }
    }
    s.memory = plan.memory;
  }
  const double share = static_cast<double>(batch_rows) / static_cast<double>(all_rows);
  EXPECT_GE(share, 0.045);
  EXPECT_LE(share, 0.06);
}

TEST_F(PlannerTest, ReserveRefusesWhatCouldNeverEnd) {
  PlannerSnapshot s = Snapshot(/*free_blocks=*/5);
  s.decode = {Decoding(1, 300)};
  s.decode[0].holding.total_blocks = 8;  // holds 3, wants 5 more
  EXPECT_TRUE(ReserveHolds(s, Waiting(2, 100), 0));
  EXPECT_FALSE(ReserveHolds(s, Waiting(2, 100), 1));
  PrefillInput other = Continuing(3, 128, 300);
  s.prefill = {other};
  EXPECT_TRUE(ReserveHolds(s, Waiting(2, 100), 1)) << "the other can be parked";
}

}  // namespace
}  // namespace deepinfer
