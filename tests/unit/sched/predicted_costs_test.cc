// What routers are told of the step time model, and how long answers are.

#include "sched/predicted_costs.h"

#include <gtest/gtest.h>

#include "sched/output_lengths.h"
#include "sched/planner.h"
#include "sched/shedding.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

TEST(PredictedCosts, FollowTheModelOfStepTimes) {
  const FlopModel flops{CostShape{}};
  StepTimeModel time;
  const PromptSteps steps{.chunk_rows = 512, .max_context = 4096};
  EXPECT_EQ(PredictCosts({&flops, &time}, steps).prompt_us_per_token, 0) << "nothing is known";
  // 100 µs a step, 10 a prompt row, 50 a decode row, 1 per hundred positions of context.
  for (int i = 0; i < 2000; ++i) {
    StepRows rows;
    rows.prefill_rows = i % 3 == 0 ? 64 * (i % 9) : 0;
    rows.max_context = 100 + i % 700;
    for (int d = 0; d < i % 7; ++d) {
      ++rows.decode_rows;
      rows.decode_context += i * 37 % 3000;
    }
    rows.flops = static_cast<double>(1 + rows.prefill_rows + rows.decode_rows);
    time.Observe(rows, 100.0 + 10.0 * static_cast<double>(rows.prefill_rows) +
                           50.0 * static_cast<double>(rows.decode_rows) +
                           0.01 * rows.decode_context);
  }
  const PredictedCosts costs = PredictCosts({&flops, &time}, steps);
  EXPECT_NEAR(costs.PromptUs({2048}), 2048 * 10 + 4 * 100, 1000);
  EXPECT_NEAR(costs.PromptUs({8}), 8 * 10 + 100, 30) << "a step costs as much for few rows";
  EXPECT_NEAR(costs.step_us, 100, 30);
  EXPECT_NEAR(costs.step_us_per_row, 50, 5);
  EXPECT_NEAR(costs.step_us_per_token, 0.01, 0.002);
  EXPECT_LT(costs.error, 0.05);
}

PredictedCosts Costs() {
  PredictedCosts costs;
  costs.prompt_us_per_step = 100;
  costs.prompt_us_per_token = 10;
  costs.tail_us_per_row = 5;
  costs.chunk_rows = 512;
  costs.tail_rows = 140;
  costs.load_us = 1'000;
  costs.load_us_per_token = 1;
  return costs;
}

TEST(PredictedCosts, PromptsPayForTheirStepsAndTheirTail) {
  PredictedCosts costs = Costs();
  EXPECT_DOUBLE_EQ(costs.PromptUs({100}), 100 + 100 * 15);
  EXPECT_DOUBLE_EQ(costs.PromptUs({512}), 100 + 512 * 10 + 140 * 5);
  EXPECT_DOUBLE_EQ(costs.PromptUs({513}), 200 + 513 * 10 + 140 * 5);
  // A step ends at the block edge below the tail: 384 of 600, 0 of 200.
  costs.cuts_at_tail = true;
  EXPECT_DOUBLE_EQ(costs.PromptUs({600}), 200 + 600 * 10 + 140 * 5);
  EXPECT_DOUBLE_EQ(costs.PromptUs({300}), 200 + 300 * 10 + 140 * 5);
  EXPECT_DOUBLE_EQ(costs.PromptUs({200}), 100 + 200 * 10 + 140 * 5);
  costs.prompt_us_per_square = 0.01;
  EXPECT_DOUBLE_EQ(costs.PromptUs({200}), 100 + 200 * 10 + 140 * 5 + 400);
}

TEST(PredictedCosts, WhatIsStoredOfAPromptIsLoadedWhereThatIsQuicker) {
  PredictedCosts costs = Costs();
  const PromptWork prompt{4096, {.own_tokens = 1024, .peer_tokens = 2560, .first_row = 3456}};
  EXPECT_DOUBLE_EQ(costs.PromptUs(prompt), 1'000 + 3584 + 2 * 100 + 640 * 10 + 140 * 5);
  costs.load_us_per_token = 100;
  EXPECT_DOUBLE_EQ(costs.PromptUs(prompt), costs.PromptUs({4096}));
  EXPECT_DOUBLE_EQ(costs.PromptUs({4096, {.own_tokens = 128}}), costs.PromptUs({4096}))
      << "a load that saves no row";
}

TEST(PredictedCosts, PromptsThatWaitShareStepsButNotTails) {
  const PredictedCosts costs = Costs();
  EXPECT_EQ(costs.BacklogUs({}), 0);
  EXPECT_DOUBLE_EQ(costs.BacklogUs({.prompts = 3, .tokens = 900}), 200 + 900 * 10 + 3 * 140 * 5);
  EXPECT_DOUBLE_EQ(costs.BacklogUs({.prompts = 1, .tokens = 40}), 100 + 40 * 15)
      << "the rest of a prompt";
}

TEST(OutputLengths, ForgetOldAnswers) {
  OutputLengths lengths;
  for (int i = 0; i < 19; ++i) lengths.Add(1000);
  EXPECT_FALSE(lengths.P90().has_value());
  for (int i = 0; i < 256; ++i) lengths.Add(i % 10 == 0 ? 500 : 20);
  EXPECT_EQ(lengths.P90(), 500);
  for (int i = 0; i < 256; ++i) lengths.Add(7);
  EXPECT_EQ(lengths.P90(), 7);
}

TEST(Shedding, GoesOnUntilThereIsRoom) {
  Shedding shedding;
  EXPECT_TRUE(shedding.Admits(1.0));
  EXPECT_FALSE(shedding.Admits(1.01));
  EXPECT_FALSE(shedding.Admits(0.91));
  EXPECT_TRUE(shedding.Admits(0.9));
  EXPECT_TRUE(shedding.Admits(0.99));
}

}  // namespace
}  // namespace deepinfer
