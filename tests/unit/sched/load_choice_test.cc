// When a stored prefix is loaded: the cost model and the deadline.

#include "sched/load_choice.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kMinuteUs = 60'000'000;

TEST(LoadTimeModel, LearnsFixedPartAndRate) {
  LoadTimeModel model;
  EXPECT_EQ(model.PredictUs(1024, 0), 0) << "nothing is known";
  for (int64_t n : {256, 1024, 4096, 512}) model.Observe(n, 2000 + 3 * n, 1000);
  EXPECT_NEAR(model.PredictUs(2048, 1000), 2000 + 3 * 2048, 1);
  EXPECT_NEAR(model.PredictUs(128, 1000), 2000 + 3 * 128, 1);
}

TEST(LoadTimeModel, LoadsOfOneSizeArePredictedInProportion) {
  LoadTimeModel model;
  for (int i = 0; i < 3; ++i) model.Observe(1000, 5000, i);
  EXPECT_NEAR(model.PredictUs(2000, 2), 10000, 1);
}

TEST(LoadTimeModel, ForgetsWithinMinutes) {
  LoadTimeModel model;
  for (int64_t n : {256, 1024, 4096}) model.Observe(n, 1000 * n, 0);
  for (int64_t n : {256, 1024, 4096}) model.Observe(n, n, 10 * kMinuteUs);
  EXPECT_NEAR(model.PredictUs(2000, 10 * kMinuteUs), 2000, 20) << "the slow time is over";
  EXPECT_GT(model.PredictUs(2000, 11 * kMinuteUs), 0);
  EXPECT_EQ(model.PredictUs(2000, 20 * kMinuteUs), 0) << "a disk that was slow is tried again";
}

TEST(LoadTimeModel, NeverPredictsNothingForAMeasuredLoad) {
  LoadTimeModel model;
  model.Observe(128, 0, 0);
  EXPECT_GT(model.PredictUs(128, 0), 0);
}

TEST(ChooseLoad, LoadsUnlessComputingIsFaster) {
  EXPECT_TRUE(ChooseLoad({.load_us = 1000, .saved_us = 50'000}).load);
  EXPECT_FALSE(ChooseLoad({.load_us = 50'000, .saved_us = 50'000}).load);
  EXPECT_TRUE(ChooseLoad({.load_us = 0, .saved_us = 50'000}).load) << "unknown: worth a try";
  EXPECT_TRUE(ChooseLoad({.load_us = 50'000, .saved_us = 0}).load);
}

TEST(ChooseLoad, WaitsHalfOfWhatItSavesAndNotPastTheSlack) {
  EXPECT_EQ(ChooseLoad({.saved_us = 400'000}).wait_us, 200'000);
  EXPECT_EQ(ChooseLoad({.saved_us = 400'000, .slack_us = 50'000}).wait_us, 50'000);
  EXPECT_EQ(ChooseLoad({.saved_us = 400'000, .slack_us = -1}).wait_us, 10'000);
  EXPECT_EQ(ChooseLoad({.saved_us = 1000}).wait_us, 10'000);
  EXPECT_EQ(ChooseLoad({.saved_us = 1000, .min_wait_us = 70'000}).wait_us, 70'000);
  EXPECT_EQ(ChooseLoad({}).wait_us, 2'000'000) << "the speed of prefill is unknown";
}

}  // namespace
}  // namespace deepinfer
