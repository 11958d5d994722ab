#include "kvcache/replay_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace deepinfer {
namespace {

constexpr ReplayGeometry kModel{.window = 128, .keep_rows = 140, .encoder_layers = 20};

ReplayPlan Plan(ReplayMode mode, int64_t prompt_tokens, int64_t hit_tokens, uint16_t gen = 0) {
  return PlanReplay(
      kModel, mode,
      {.prompt_tokens = prompt_tokens, .hit_tokens = hit_tokens, .hit_replay_gen = gen});
}

TEST(ReplayPlan, RunsEverythingWithoutAHit) {
  for (const ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact}) {
    const ReplayPlan plan = Plan(mode, 10240, 0);
    EXPECT_EQ(plan.first_row, 0);
    EXPECT_EQ(plan.window_clamp, 0);
    EXPECT_EQ(plan.replay_gen, 0);
    EXPECT_EQ(plan.cached_tokens, 0);
    EXPECT_EQ(plan.replayed_tokens, 0);
  }
}

TEST(ReplayPlan, BoundedReplayRunsOneWindowAgainAndCountsIt) {
  const ReplayPlan plan = Plan(ReplayMode::kBounded, 10240, 9984, 2);
  EXPECT_EQ(plan.first_row, 9856);
  EXPECT_EQ(plan.window_clamp, 9856);
  EXPECT_EQ(plan.replay_gen, 3);
  EXPECT_EQ(plan.cached_tokens, 9856);
  EXPECT_EQ(plan.replayed_tokens, 128);
}

TEST(ReplayPlan, BoundedReplayCoversTheDecoderRowsOfAFullHit) {
  const ReplayPlan plan = Plan(ReplayMode::kBounded, 1024, 1024);
  EXPECT_EQ(plan.first_row, 1024 - 140);
  EXPECT_EQ(plan.replayed_tokens, 140);
}

TEST(ReplayPlan, ReplayFromTheFirstRowIsExact) {
  const ReplayPlan plan = Plan(ReplayMode::kBounded, 1000, 128, 4);
  EXPECT_EQ(plan.first_row, 0);
  EXPECT_EQ(plan.replay_gen, 4);
  EXPECT_EQ(plan.cached_tokens, 0);
  EXPECT_EQ(plan.replayed_tokens, 128);
}

TEST(ReplayPlan, ExactReplayReachesBackOneWindowPerEncoderLayer) {
  const ReplayPlan plan = Plan(ReplayMode::kExact, 10240, 9984, 0);
  EXPECT_EQ(plan.first_row, 9984 - 2540);
  EXPECT_EQ(plan.window_clamp, plan.first_row);
  EXPECT_EQ(plan.replay_gen, 0);
  EXPECT_EQ(Plan(ReplayMode::kExact, 4096, 2432).first_row, 0);
}

// What it computes of the windows at that edge is kept for the next hit.
TEST(ReplayPlan, ExactReplayIsWholeFromTheLastEdgeBelowTheDecoderRows) {
  const ReplayPlan plan = Plan(ReplayMode::kExact, 10240, 10240, 0);
  EXPECT_EQ(plan.whole_from, (10240 - 140) / 128 * 128);
  EXPECT_EQ(plan.first_row, plan.whole_from - 2540);
  EXPECT_EQ(plan.window_clamp, plan.first_row);
  EXPECT_EQ(plan.cached_tokens, plan.first_row);
}

TEST(ReplayPlan, SnapshotRestartsAtItsEdge) {
  const ReplayInput input{.prompt_tokens = 10240,
                          .hit_tokens = 9984,
                          .hit_replay_gen = 1,
                          .snapshot_edge = 9728,
                          .snapshot_replay_gen = 2};
  const ReplayPlan plan = PlanReplay(kModel, ReplayMode::kBounded, input);
  EXPECT_TRUE(plan.uses_snapshot);
  EXPECT_EQ(plan.first_row, 9728);
  EXPECT_EQ(plan.window_clamp, 9600);
  EXPECT_EQ(plan.replay_gen, 2);
  EXPECT_EQ(plan.replayed_tokens, 256);
}

TEST(ReplayPlan, IgnoresSnapshotsThatDoNotFit) {
  ReplayInput input{.prompt_tokens = 10240, .hit_tokens = 9984};
  input.snapshot_edge = 9984 - 1152;  // more than 1,024 tokens below the hit
  EXPECT_FALSE(PlanReplay(kModel, ReplayMode::kBounded, input).uses_snapshot);
  input.snapshot_edge = 9984 + 128;  // beyond the hit
  EXPECT_FALSE(PlanReplay(kModel, ReplayMode::kBounded, input).uses_snapshot);
  input.snapshot_edge = 9984;
  input.snapshot_replay_gen = 1;  // approximate
  EXPECT_FALSE(PlanReplay(kModel, ReplayMode::kExact, input).uses_snapshot);
  EXPECT_TRUE(PlanReplay(kModel, ReplayMode::kBounded, input).uses_snapshot);
  // At a full hit the edge itself lies above the decoder rows.
  input = {.prompt_tokens = 1024, .hit_tokens = 1024, .snapshot_edge = 1024};
  EXPECT_FALSE(PlanReplay(kModel, ReplayMode::kBounded, input).uses_snapshot);
}

TEST(ReplayPlan, GenerationSaturates) {
  EXPECT_EQ(Plan(ReplayMode::kBounded, 4096, 2048, 65535).replay_gen, 65535);
}

RC_GTEST_PROP(ReplayPlanProperty, CoversTheDecoderRowsAndAccountsForEveryToken, ()) {
  const auto prompt_tokens = *rc::gen::inRange<int64_t>(1, 20'000);
  ReplayInput input;
  input.prompt_tokens = prompt_tokens;
  input.hit_tokens = 128 * *rc::gen::inRange<int64_t>(0, prompt_tokens / 128 + 1);
  input.hit_replay_gen = *rc::gen::arbitrary<uint8_t>();
  if (*rc::gen::arbitrary<bool>()) {
    input.snapshot_edge = 128 * *rc::gen::inRange<int64_t>(0, 160);
    input.snapshot_replay_gen = *rc::gen::inRange<uint16_t>(0, 3);
  }
  const auto mode = *rc::gen::element(ReplayMode::kBounded, ReplayMode::kExact);
  const ReplayPlan plan = PlanReplay(kModel, mode, input);
  // first row <= K0 and <= H - one window's worth of rows or everything.
  RC_ASSERT(plan.first_row >= 0);
  RC_ASSERT(plan.first_row <= std::max<int64_t>(0, prompt_tokens - kModel.keep_rows));
  RC_ASSERT(plan.window_clamp <= plan.first_row);
  RC_ASSERT(plan.first_row <= input.hit_tokens || input.hit_tokens == 0);
  RC_ASSERT(plan.cached_tokens + plan.replayed_tokens == input.hit_tokens);
  RC_ASSERT(plan.replayed_tokens <= (mode == ReplayMode::kExact ? 2540 + 127 + 140 : 1024 + 140));
  if (mode == ReplayMode::kExact)
    RC_ASSERT(plan.replay_gen == (input.hit_tokens > 0 ? input.hit_replay_gen : 0));
}

}  // namespace
}  // namespace deepinfer
