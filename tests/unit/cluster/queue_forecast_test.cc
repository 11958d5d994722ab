// What the queue's own movement says about the wait of the next request.

#include "cluster/queue_forecast.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// A queue of `waiting` that starts `per_second` requests for `seconds`.
QueueSnapshot Watch(QueueForecast* forecast, int32_t waiting, int64_t per_second, int seconds) {
  QueueSnapshot now;
  now.waiting = waiting;
  for (int s = 0; s <= seconds; ++s) {
    forecast->Observe(s * kSecondUs, now);
    if (s < seconds) {
      now.started += per_second;
      now.prefill_rows += 1000;
    }
  }
  return now;
}

TEST(QueueForecast, KnowsNothingBeforeTheQueueWasWatched) {
  QueueForecast forecast;
  QueueSnapshot now;
  EXPECT_EQ(forecast.WaitSeconds(now), 0.0);
  now.waiting = 3;
  EXPECT_FALSE(forecast.WaitSeconds(now).has_value());
  forecast.Observe(0, now);
  forecast.Observe(kSecondUs / 4, now);
  EXPECT_FALSE(forecast.WaitSeconds(now).has_value());
}

TEST(QueueForecast, DividesTheQueueByItsSpeed) {
  QueueForecast forecast;
  const QueueSnapshot now = Watch(&forecast, 100, 5, 300);
  EXPECT_NEAR(*forecast.WaitSeconds(now), 20, 0.5);
}

TEST(QueueForecast, LongPromptsTakeTheirOwnTime) {
  QueueForecast forecast;
  QueueSnapshot now = Watch(&forecast, 10, 5, 300);
  now.waiting_prompt_tokens = 50'000;
  EXPECT_NEAR(*forecast.WaitSeconds(now), 50, 1);
}

// A quiet hour must not make the first burst look endless.
TEST(QueueForecast, TimesWithoutAQueueDoNotCount) {
  QueueForecast forecast;
  QueueSnapshot now = Watch(&forecast, 20, 10, 100);
  const double before = *forecast.WaitSeconds(now);
  now.waiting = 0;
  forecast.Observe(101 * kSecondUs, now);
  ++now.started;
  forecast.Observe(3700 * kSecondUs, now);
  now.waiting = 20;
  forecast.Observe(3701 * kSecondUs, now);
  EXPECT_DOUBLE_EQ(*forecast.WaitSeconds(now), before);
}

TEST(QueueForecast, AStandingQueueIsJudgedByItsAge) {
  QueueForecast forecast;
  const QueueSnapshot now = Watch(&forecast, 2, 0, 10);
  EXPECT_GT(*forecast.WaitSeconds(now), 15);
}

TEST(QueueForecast, FollowsAChangeOfSpeed) {
  QueueForecast forecast;
  QueueSnapshot now = Watch(&forecast, 100, 1, 300);
  const double slow = *forecast.WaitSeconds(now);
  for (int s = 301; s < 400; ++s) {
    now.started += 10;
    forecast.Observe(s * kSecondUs, now);
  }
  EXPECT_NEAR(slow, 100, 5);
  EXPECT_NEAR(*forecast.WaitSeconds(now), 10, 1);
}

TEST(QueueSum, WorkersThatComeAndGoMakeNoJumps) {
  QueueSum sum;
  QueueSnapshot a, b;
  a.started = 100;
  a.waiting = 2;
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{1, a}}).started, 0) << "what was before counts not";
  a.started = 110;
  b.started = 5000;
  b.waiting = 3;
  QueueSnapshot now = sum.Add(std::vector<WorkerQueue>{{2, b}, {1, a}});
  EXPECT_EQ(now.started, 10);
  EXPECT_EQ(now.waiting, 5);
  b.started = 5007;
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{2, b}}).started, 17) << "one left, its work stays";
  b.started = 1;
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{3, b}}).started, 17) << "one began anew";
}

TEST(QueueSum, AWorkerThatHasToldNothingYetDoesNotBeginAtZero) {
  QueueSum sum;
  QueueSnapshot now;
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{0, now}}).started, 0);
  now.started = 5000;
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{0, now}}).started, 0) << "of no known process";
  EXPECT_EQ(sum.Add(std::vector<WorkerQueue>{{7, now}}).started, 0) << "what was before counts not";
}

}  // namespace
}  // namespace deepinfer
