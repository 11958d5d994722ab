#include "sched/draft_time.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(DraftTime, NothingIsKnownBeforeFivePasses) {
  DraftTimeModel model;
  EXPECT_EQ(model.Predict(1), 0.0);
  for (int i = 0; i < 4; ++i) model.Observe(1, 100.0);
  EXPECT_EQ(model.Predict(1), 0.0);
  model.Observe(1, 100.0);
  EXPECT_EQ(model.Predict(1), 100.0);
}

TEST(DraftTime, TheMedianOfTheLastPassesIgnoresOutliersAndFollowsTheMachine) {
  DraftTimeModel model;
  for (int i = 0; i < 8; ++i) model.Observe(2, 100.0);
  model.Observe(2, 1e6);
  EXPECT_EQ(model.Predict(2), 100.0);
  for (int i = 0; i < 9; ++i) model.Observe(2, 50.0);
  EXPECT_EQ(model.Predict(2), 50.0);
}

TEST(DraftTime, OtherSizesLieOnALine) {
  DraftTimeModel model;
  for (int i = 0; i < 5; ++i) {
    model.Observe(2, 100.0);
    model.Observe(4, 140.0);
  }
  EXPECT_DOUBLE_EQ(model.Predict(1), 50.0);
  EXPECT_DOUBLE_EQ(model.Predict(3), 120.0);
  EXPECT_DOUBLE_EQ(model.Predict(8), 280.0);
  model.Observe(0, 5.0);
  for (int i = 0; i < 5; ++i) model.Observe(2, 0.0);
  EXPECT_DOUBLE_EQ(model.Predict(2), 100.0);
}

TEST(DraftTime, ColdPassesSayOnlyThatOthersTakeNoLonger) {
  constexpr bool kIsCold = true;
  DraftTimeModel model;
  for (int i = 0; i < 5; ++i) model.Observe(1, 300.0, kIsCold);
  EXPECT_EQ(model.Predict(1), 300.0);  // nothing better is known
  for (int i = 0; i < 9; ++i) model.Observe(1, 100.0);
  for (int i = 0; i < 20; ++i) model.Observe(1, 300.0, kIsCold);
  EXPECT_EQ(model.Predict(1), 100.0);
  for (int i = 0; i < 9; ++i) model.Observe(1, 80.0, kIsCold);
  EXPECT_EQ(model.Predict(1), 80.0);
  for (int i = 0; i < 9; ++i) model.Observe(1, 120.0);
  EXPECT_EQ(model.Predict(1), 120.0);
}

TEST(DraftTime, TheNearestSizeIsOneBetweenMeasuredOnes) {
  DraftTimeModel model;
  const auto measure = [&](int64_t size) {
    for (int i = 0; i < 5; ++i) model.Observe(size, 10.0 * static_cast<double>(size));
  };
  EXPECT_EQ(model.Nearest(1), 0);
  measure(2);
  EXPECT_EQ(model.Nearest(2), 2);
  EXPECT_EQ(model.Nearest(1), 2);
  EXPECT_EQ(model.Nearest(3), 2);
  measure(6);
  EXPECT_EQ(model.Nearest(4), 4);
  EXPECT_EQ(model.Nearest(7), 6);
}

}  // namespace
}  // namespace deepinfer
