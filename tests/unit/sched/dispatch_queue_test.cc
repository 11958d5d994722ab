// Whose turn it is among requests that wait for a worker, and what tenants may use.

#include "sched/dispatch_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "sched/limits.h"
#include "sched/snapshot.h"
#include "sched/tenant_budgets.h"

namespace deepinfer {
namespace {

constexpr RequestClass kInteractive = RequestClass::kInteractive, kAgent = RequestClass::kAgent,
                       kBatch = RequestClass::kBatch;

bool Everybody(uint64_t) { return true; }

class DispatchQueueTest : public ::testing::Test {
 protected:
  uint64_t Add(RequestClass c, uint64_t tenant = 0, double cost_us = 1000, int64_t arrival_us = 0,
               int64_t latest_start_us = kNoDeadlineUs) {
    queue_.Add({++last_id_, c, tenant, arrival_us, latest_start_us, cost_us, 10});
    return last_id_;
  }
  std::vector<uint64_t> TakeAll(int64_t now_us = 0) {
    std::vector<uint64_t> order;
    while (const auto id = queue_.Next(now_us, Everybody)) {
      order.push_back(*id);
      queue_.Dispatch(*id);
    }
    return order;
  }

  DispatchQueue queue_;
  uint64_t last_id_ = 0;
};

TEST_F(DispatchQueueTest, ClassesGoInTheirOrderAndWithinThemTheLeastSlack) {
  const uint64_t batch = Add(kBatch), agent = Add(kAgent), late = Add(kInteractive, 0, 1, 5, 900);
  const uint64_t soon = Add(kInteractive, 0, 1, 6, 800), free = Add(kInteractive, 0, 1, 1);
  EXPECT_EQ(TakeAll(), (std::vector<uint64_t>{soon, late, free, agent, batch}));
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.prompt_tokens(), 0);
  EXPECT_EQ(queue_.CostAheadUs(kBatch), 0);
}

TEST_F(DispatchQueueTest, BatchWorkMayBePassedOver) {
  const int64_t now_us = 10 * kMaxWaitBatchUs;
  const uint64_t batch = Add(kBatch), fresh = Add(kInteractive, 0, 1000, now_us);
  EXPECT_EQ(queue_.Next(now_us, Everybody), batch);
  EXPECT_EQ(queue_.Next(now_us, Everybody, /*with_batch=*/false), fresh);
}

TEST_F(DispatchQueueTest, WhatWaitedForLongerThanItsClassMayGoesFirst) {
  const int64_t now_us = 10 * kMaxWaitBatchUs;
  const uint64_t fresh = Add(kInteractive, 0, 1000, now_us);
  const uint64_t batch = Add(kBatch, 0, 1000, now_us - kMaxWaitBatchUs - 2);
  const uint64_t aged = Add(kInteractive, 0, 1000, now_us - kMaxWaitInteractiveUs - 1);
  EXPECT_EQ(TakeAll(now_us), (std::vector<uint64_t>{batch, aged, fresh}));
}

TEST_F(DispatchQueueTest, TheBatchClassKeepsItsShareOfTheWorkUnderAFlood) {
  for (int i = 0; i < 20; ++i) Add(kBatch, 0, 3000);
  double of_batch = 0, of_all = 0;
  for (int i = 0; i < 1000; ++i) {
    Add(kInteractive);
    const uint64_t id = queue_.Next(0, Everybody).value();
    const double cost_us = id <= 20 ? 3000 : 1000;
    of_batch += id <= 20 ? cost_us : 0;
    of_all += cost_us;
    queue_.Dispatch(id);
  }
  EXPECT_GT(queue_.size(kBatch), 0u);
  EXPECT_NEAR(of_batch / of_all, kBatchFloor, 0.003);
}

TEST_F(DispatchQueueTest, TenantsOfAClassShareByCostAndWhoeverWasAwaySavedNothing) {
  std::vector<uint64_t> flood;
  for (int i = 0; i < 6; ++i) flood.push_back(Add(kInteractive, 1));
  const uint64_t big = Add(kInteractive, 2, 3000), other = Add(kInteractive, 2, 3000);
  EXPECT_EQ(TakeAll(), (std::vector<uint64_t>{flood[0], big, flood[1], flood[2], flood[3], other,
                                              flood[4], flood[5]}));
  // One that comes while another has been served for a while begins where that one is now.
  for (int i = 0; i < 4; ++i) flood[static_cast<size_t>(i)] = Add(kInteractive, 1);
  for (int i = 0; i < 3; ++i) queue_.Dispatch(flood[static_cast<size_t>(i)]);
  const uint64_t first = Add(kInteractive, 2), second = Add(kInteractive, 2);
  EXPECT_EQ(TakeAll(), (std::vector<uint64_t>{first, flood[3], second}));
}

TEST_F(DispatchQueueTest, TenantsThatMayNotGoHoldNobodyUp) {
  const uint64_t held = Add(kInteractive, 1), batch = Add(kBatch, 2);
  const auto may_go = [](uint64_t tenant) { return tenant != 1; };
  EXPECT_EQ(queue_.Next(0, may_go), batch);
  queue_.Dispatch(batch);
  EXPECT_EQ(queue_.Next(0, may_go), std::nullopt);
  EXPECT_EQ(queue_.CostOfTenantUs(1), 1000);
  EXPECT_EQ(queue_.CostOfTenantUs(2), 0);
  EXPECT_TRUE(queue_.Remove(held));
  EXPECT_FALSE(queue_.Remove(held));
  EXPECT_TRUE(queue_.empty());
}

// Whatever comes and goes, each request is taken once and the sums come back to nothing.
TEST_F(DispatchQueueTest, KeepsItsSums) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  std::map<uint64_t, int> taken;
  std::vector<uint64_t> removed;
  int64_t now_us = 0;
  for (int i = 0; i < 3000; ++i) {
    now_us += random() % 200'000;
    const auto c = static_cast<RequestClass>(random() % 3);
    if (random() % 2 == 0) Add(c, random() % 4, random() % 3 == 0 ? 0 : 10, now_us, now_us + 5);
    if (random() % 3 == 0 && queue_.Remove(1 + random() % (last_id_ + 1))) removed.push_back(0);
    const auto id = queue_.Next(now_us, [&](uint64_t tenant) { return tenant != random() % 4; });
    if (!id) continue;
    ++taken[*id];
    queue_.Dispatch(*id);
  }
  for (const uint64_t id : TakeAll(now_us)) ++taken[id];
  EXPECT_EQ(taken.size() + removed.size(), last_id_);
  for (const auto& [id, times] : taken) EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(queue_.prompt_tokens(), 0);
  EXPECT_NEAR(queue_.CostAheadUs(kBatch), 0, 1e-6);
  EXPECT_FALSE(queue_.oldest_us().has_value());
  for (const RequestClass c : kRequestClasses) EXPECT_EQ(queue_.size(c), 0u);
}

TEST(TenantBudgets, FillEvenlyAndHoldNoMoreThanABurst) {
  TenantBudgets budgets({.rate = 0.5, .burst_us = 1000});
  EXPECT_TRUE(budgets.Allows(7, 0));
  budgets.Charge(7, 1600, 0);
  EXPECT_FALSE(budgets.Allows(7, 0));
  EXPECT_TRUE(budgets.Allows(8, 0));
  EXPECT_DOUBLE_EQ(budgets.WaitUs(7, 0, 0), 1200);
  EXPECT_DOUBLE_EQ(budgets.WaitUs(7, 100, 200), 1200) << "behind other work of its own";
  EXPECT_TRUE(budgets.Allows(7, 1200));
  budgets.Charge(7, 1000, 1'000'000);
  EXPECT_DOUBLE_EQ(budgets.WaitUs(7, 1, 1'000'000), 2) << "a day of rest saves up one burst";
  budgets.Charge(7, -400, 1'000'000);
  EXPECT_DOUBLE_EQ(budgets.WaitUs(7, 500, 1'000'000), 200);
}

TEST(TenantBudgets, WithoutALimitNothingIsKept) {
  TenantBudgets budgets({});
  budgets.Charge(1, 1e12, 0);
  EXPECT_TRUE(budgets.Allows(1, 0));
  EXPECT_EQ(budgets.size(), 0u);
}

TEST(TenantBudgets, ForgetsTenantsWhoseBucketsAreFull) {
  TenantBudgets budgets({.rate = 1, .burst_us = 10});
  for (uint64_t i = 0; i < 10'000; ++i) budgets.Charge(i, 5, static_cast<int64_t>(i) * 100);
  EXPECT_LT(budgets.size(), 2048u);
}

}  // namespace
}  // namespace deepinfer
