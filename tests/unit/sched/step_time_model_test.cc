#include "sched/step_time_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

StepRows SomeRows(int64_t prefill, int64_t decode) {
  const FlopModel flops(ReleasedShape());
  const StepTimeModel unused;
  const CostModel cost{&flops, &unused};
  StepRows rows;
  if (prefill > 0) cost.AddPrefill(1000, 1000 + prefill, 1000 + prefill - 140, &rows);
  for (int64_t i = 0; i < decode; ++i) cost.AddDecode(2000 + 100 * i, 1, &rows);
  return rows;
}

TEST(StepTimeModel, KnowsNothingAtFirst) {
  EXPECT_EQ(StepTimeModel().Predict(SomeRows(128, 4)), 0.0);
}

TEST(StepTimeModel, PredictsByOperationCountFromTheFirstStepOn) {
  StepTimeModel model;
  const StepRows small = SomeRows(128, 0), large = SomeRows(512, 0);
  model.Observe(small, 1000.0);
  EXPECT_NEAR(model.Predict(large), 1000.0 * large.flops / small.flops, 1e-6);
}

TEST(StepTimeModel, LearnsALinearMachineWithinFivePercent) {
  const LearnedCost learned;
  EXPECT_LT(learned.time().mape(), 0.05);
  for (int64_t prefill : {0, 128, 500}) {
    for (int64_t decode : {1, 8, 16}) {
      const StepRows rows = SomeRows(prefill, decode);
      EXPECT_NEAR(learned.time().Predict(rows) / MachineUs(rows), 1.0, 0.05)
          << prefill << " + " << decode;
    }
  }
}

TEST(StepTimeModel, DropsOutliersAndFollowsALastingChange) {
  LearnedCost learned;
  StepTimeModel model = learned.time();
  const StepRows rows = SomeRows(256, 4);
  const double before = model.Predict(rows);
  const int64_t outliers = model.num_outliers();
  model.Observe(rows, 50 * before);
  EXPECT_EQ(model.num_outliers(), outliers + 1);
  EXPECT_EQ(model.Predict(rows), before);
  for (int i = 0; i < 3000; ++i) {
    const StepRows mix = SomeRows(i % 3 * 100, 1 + i % 5);
    model.Observe(mix, 2 * MachineUs(mix));
  }
  EXPECT_NEAR(model.Predict(rows) / (2 * MachineUs(rows)), 1.0, 0.1);
}

TEST(StepTimeModel, IgnoresTimesThatAreNone) {
  StepTimeModel model;
  model.Observe(SomeRows(1, 1), 0.0);
  model.Observe(SomeRows(1, 1), -5.0);
  model.Observe(SomeRows(1, 1), std::nan(""));
  EXPECT_EQ(model.num_observations(), 0);
}

TEST(StepTimeModel, TextRoundTripKeepsPredictions) {
  const LearnedCost learned;
  const Result<StepTimeModel> read = StepTimeModel::FromText(learned.time().ToText());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  const StepRows rows = SomeRows(300, 7);
  EXPECT_EQ(read->Predict(rows), learned.time().Predict(rows));
  for (const char* bad :
       {"", "step_time_model_v1", "step_time_model_v1 1 2 3", "other 1 1 1 1 1 1 1 1 1",
        "step_time_model_v1 -1 1 1 1 1 1 1 1 1", "step_time_model_v1 1 1 1 1 nan 1 1 1 1"}) {
    EXPECT_EQ(StepTimeModel::FromText(bad).status().code(), StatusCode::kInvalidRequest) << bad;
  }
}

TEST(StepTimeModel, AStepIsNeverPredictedToTakeNoTime) {
  StepRows rows = SomeRows(300, 7);
  rows.flops = 1000;
  const auto model = StepTimeModel::FromText("step_time_model_v1 0.5 -9 0 0 0 0 0 0 0");
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->Predict(rows), 500.0) << "fitted terms below zero: by the count of operations";
}

}  // namespace
}  // namespace deepinfer
