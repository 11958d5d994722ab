#include "engine/model_use.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

StepJob Job(double flops, int64_t model_us, std::vector<int32_t> expert_rows) {
  StepJob job;
  job.rows.flops = flops;
  job.model_us = model_us;
  job.expert_rows = std::move(expert_rows);
  return job;
}

TEST(ModelUse, ExpertLoadIsTheBusiestOverTheMeanOfAWindow) {
  ModelUse use(4);
  EngineStatistics s;
  // Two layers of four experts; a third one had no rows.
  for (int32_t step = 1; step < ModelUse::kWindowSteps; ++step) {
    use.Note(Job(1, 1, {2, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}), &s);
  }
  EXPECT_EQ(s.expert_load_milli, 0) << "the window has not ended";
  use.Note(Job(1, 1, {2, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}), &s);
  EXPECT_EQ(s.expert_load_milli, 3000);  // of 4 and 2
  // The next window forgets the last one.
  for (int32_t step = 0; step < ModelUse::kWindowSteps; ++step) {
    use.Note(Job(1, 1, {1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0}), &s);
  }
  EXPECT_EQ(s.expert_load_milli, 1000);
}

TEST(ModelUse, RateFollowsRecentSteps) {
  ModelUse use(1);
  EngineStatistics s;
  use.Note(Job(5e6, 0, {}), &s);
  EXPECT_EQ(s.flops_per_second, 0) << "a clock that stood still tells nothing";
  for (int step = 0; step < 1000; ++step) use.Note(Job(3e6, 1000, {}), &s);
  EXPECT_NEAR(static_cast<double>(s.flops_per_second), 3e9, 1e6);
  for (int step = 0; step < 1000; ++step) use.Note(Job(3e6, 2000, {}), &s);
  EXPECT_NEAR(static_cast<double>(s.flops_per_second), 1.5e9, 1e6);
}

}  // namespace
}  // namespace deepinfer
