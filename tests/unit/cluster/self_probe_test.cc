// A worker without work is tried now and then, and one that does not answer counts as ill.

#include "cluster/self_probe.h"

#include <gtest/gtest.h>

#include "support/fake_clock.h"
#include "support/scripted_worker.h"

namespace deepinfer {
namespace {

constexpr int64_t kIdleUs = 10'000'000;
constexpr int64_t kLimitUs = SelfProbeOptions{}.limit_us;

class SelfProbeTest : public ::testing::Test {
 protected:
  void Look(int32_t running = 0) {
    LoadReport load;
    load.running = running;
    probe_.Look(load);
  }
  void Wait(int64_t us) {
    clock_.Advance(us);
    Look();
  }

  FakeClock clock_{5'000'000};
  ScriptedWorker worker_{WorkerRole::kAll};
  SelfProbe probe_{{.idle_us = kIdleUs}, &worker_, &clock_};
};

TEST_F(SelfProbeTest, TriesAnIdleWorkerWithOneToken) {
  Wait(kIdleUs - 1);
  EXPECT_EQ(worker_.num_taken(), 0u);
  Wait(1);
  ASSERT_EQ(worker_.num_taken(), 1u);
  EXPECT_EQ(worker_.request(0).sampling.max_tokens, 1);
  EXPECT_EQ(worker_.request(0).request_class, RequestClass::kBatch) << "nobody waits for it";
  EXPECT_EQ(probe_.num_running(), 1);
  EXPECT_TRUE(probe_.passes());
  worker_.Send(0, 0, {7}, FinishReason::kLength);
  EXPECT_EQ(probe_.num_running(), 0);
  EXPECT_TRUE(probe_.passes());
  Wait(kIdleUs - 1);
  EXPECT_EQ(worker_.num_taken(), 1u);
  Wait(1);
  EXPECT_EQ(worker_.num_taken(), 2u);
  worker_.EndAll();
}

TEST_F(SelfProbeTest, OneThatDoesNotComeBackCountsUntilItDoes) {
  Wait(kIdleUs);
  Wait(kLimitUs - 1);
  EXPECT_TRUE(probe_.passes());
  Wait(1);
  EXPECT_FALSE(probe_.passes());
  Wait(10 * kIdleUs);
  EXPECT_EQ(worker_.num_taken(), 1u) << "one at a time";
  worker_.Send(0, 0, {7}, FinishReason::kLength);
  EXPECT_TRUE(probe_.passes());
}

TEST_F(SelfProbeTest, AFailureCountsUntilTheNextOneGoesWell) {
  Wait(kIdleUs);
  worker_.Send(0, 0, {}, FinishReason::kError, Internal("no memory"));
  EXPECT_FALSE(probe_.passes());
  Wait(kLimitUs);
  ASSERT_EQ(worker_.num_taken(), 2u) << "it is tried again soon";
  EXPECT_FALSE(probe_.passes());
  worker_.Send(1, 0, {7}, FinishReason::kLength);
  EXPECT_TRUE(probe_.passes());
}

TEST_F(SelfProbeTest, AWorkerAtWorkIsLeftAlone) {
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(kIdleUs / 2);
    Look(/*running=*/1);
  }
  EXPECT_EQ(worker_.num_taken(), 0u);
  Wait(kIdleUs / 2);
  EXPECT_EQ(worker_.num_taken(), 0u) << "it had work just now";
}

TEST_F(SelfProbeTest, ARefusalForWantOfRoomIsNoFault) {
  worker_.Refuse(ResourceExhausted("full"));
  Wait(kIdleUs);
  EXPECT_TRUE(probe_.passes());
  worker_.Refuse(Internal("broken"));
  Wait(kIdleUs);
  EXPECT_FALSE(probe_.passes());
}

TEST_F(SelfProbeTest, WhatGivesNoTokenOrLeavesIsNotAsked) {
  LoadReport load;
  load.draining = true;
  clock_.Advance(kIdleUs);
  probe_.Look(load);
  worker_.SetEncoderOnly();
  Wait(kIdleUs);
  EXPECT_EQ(worker_.num_taken(), 0u);
}

TEST(SelfProbeEnd, EndsTheProbeThatRuns) {
  FakeClock clock{0};
  ScriptedWorker worker(WorkerRole::kAll);
  {
    SelfProbe probe({.idle_us = kIdleUs}, &worker, &clock);
    clock.Advance(kIdleUs);
    probe.Look({});
  }
  EXPECT_EQ(worker.cancelled(), std::vector<std::string>{"self-probe-1"});
  worker.EndAll();
}

}  // namespace
}  // namespace deepinfer
