#include "server/throughput_log.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Throughput, IsTheWorkOfAllEnginesBetweenTwoStates) {
  std::vector<EngineStatistics> before(2), after(2);
  before[0].generated_tokens = 1000;
  for (EngineStatistics& e : after) {
    e.steps = 10;
    e.prefill_rows = 300;
    e.cached_tokens = 100;
    e.generated_tokens = 50;
    e.drafts = 10;
    e.draft_accepted = 25;
    e.kiloflops = 10'000'000;
    e.running = 2;
    e.waiting = 1;
    e.kv_tokens = 30;
    e.kv_capacity_tokens = 120;
  }
  after[0].generated_tokens += 1000;
  const auto t = MakeThroughput(before, after, 5.0);
  ASSERT_TRUE(t.has_value());
  EXPECT_DOUBLE_EQ(t->prompt_tokens_per_s, 120);
  EXPECT_DOUBLE_EQ(t->cached_tokens_per_s, 40);
  EXPECT_DOUBLE_EQ(t->generation_tokens_per_s, 20);
  EXPECT_EQ(t->running, 4);
  EXPECT_EQ(t->waiting, 2);
  EXPECT_DOUBLE_EQ(t->kv_usage, 0.25);
  EXPECT_DOUBLE_EQ(t->hit_share, 0.25);
  EXPECT_DOUBLE_EQ(t->mean_accepted_drafts, 2.5);
  EXPECT_DOUBLE_EQ(t->gflops_per_s, 4);
}

TEST(Throughput, EnginesMayComeGoAndBeginAnew) {
  EngineStatistics stays, leaves, comes, restarts;
  stays.name = "stays";
  leaves.name = "leaves";
  leaves.steps = leaves.generated_tokens = 1'000'000;
  comes.name = "comes";
  restarts.name = "restarts";
  restarts.incarnation = 1;
  restarts.generated_tokens = 500;
  const std::vector<EngineStatistics> before = {leaves, stays, restarts};
  for (EngineStatistics* e : {&stays, &comes, &restarts}) e->steps = e->generated_tokens = 10;
  restarts.incarnation = 2;
  const auto t = MakeThroughput(before, {restarts, comes, stays}, 1.0);
  ASSERT_TRUE(t.has_value());
  EXPECT_DOUBLE_EQ(t->generation_tokens_per_s, 30);
}

TEST(Throughput, AnIdleServerHasNothingToSay) {
  std::vector<EngineStatistics> state(1);
  state[0].steps = 7;
  EXPECT_FALSE(MakeThroughput(state, state, 5.0).has_value());
  std::vector<EngineStatistics> stuck = state;
  stuck[0].waiting = 1;
  EXPECT_TRUE(MakeThroughput(state, stuck, 5.0).has_value()) << "waiting work is worth a line";
}

TEST(ThroughputLog, StopsWhileItWaits) {
  const auto begin = std::chrono::steady_clock::now();
  {
    ThroughputLog log(std::chrono::hours(1), [] { return std::vector<EngineStatistics>(); });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

}  // namespace
}  // namespace deepinfer
