#include "server/rate_limit.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

RateLimit::TimePoint At(int64_t ms) { return RateLimit::TimePoint(std::chrono::milliseconds(ms)); }

TEST(RateLimit, WithoutALimitEverythingPasses) {
  RateLimit rate;
  rate.Charge(1'000'000, At(0));
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(rate.Take(1, At(0)).allowed);
  EXPECT_EQ(rate.Take(1, At(0)).limit, 0);
}

TEST(RateLimit, AMinutesWorthMayComeAtOnceThenItFillsEvenly) {
  RateLimit rate;
  rate.Set(30);
  for (int i = 0; i < 30; ++i) {
    const RateLimit::Answer answer = rate.Take(1, At(1000));
    EXPECT_TRUE(answer.allowed) << i;
    EXPECT_EQ(answer.remaining, 29 - i);
    EXPECT_EQ(answer.limit, 30);
    EXPECT_DOUBLE_EQ(answer.reset_s, 2.0 * (i + 1));
  }
  const RateLimit::Answer refused = rate.Take(1, At(1000));
  EXPECT_FALSE(refused.allowed);
  EXPECT_DOUBLE_EQ(refused.wait_s, 2);
  // One every two seconds; a refusal costs nothing.
  EXPECT_FALSE(rate.Take(1, At(2900)).allowed);
  EXPECT_TRUE(rate.Take(1, At(3001)).allowed);
  EXPECT_FALSE(rate.Take(1, At(4900)).allowed);
  EXPECT_TRUE(rate.Take(1, At(5002)).allowed);
}

TEST(RateLimit, TheBucketHoldsNoMoreThanAMinute) {
  RateLimit rate;
  rate.Set(2);
  int allowed = 0;
  for (int i = 0; i < 2; ++i) allowed += rate.Take(1, At(0)).allowed;
  for (int i = 0; i < 5; ++i) allowed += rate.Take(1, At(3'600'000)).allowed;
  EXPECT_EQ(allowed, 4);
}

TEST(RateLimit, ADebtIsWaitedOut) {
  RateLimit rate;
  rate.Set(600);
  EXPECT_TRUE(rate.Take(0, At(0)).allowed) << "asking costs nothing";
  rate.Charge(1000, At(0));
  const RateLimit::Answer refused = rate.Take(0, At(0));
  EXPECT_FALSE(refused.allowed);
  EXPECT_EQ(refused.remaining, 0);
  EXPECT_DOUBLE_EQ(refused.wait_s, 40.1);
  EXPECT_FALSE(rate.Take(0, At(40'050)).allowed);
  EXPECT_TRUE(rate.Take(0, At(40'150)).allowed);
}

TEST(RateLimit, AnEarlierTimeTakesNothingBack) {
  RateLimit rate;
  rate.Set(60);
  rate.Charge(60, At(10'000));
  EXPECT_FALSE(rate.Take(1, At(9'000)).allowed);
  EXPECT_TRUE(rate.Take(1, At(11'001)).allowed);
  EXPECT_FALSE(rate.Take(1, At(11'001)).allowed);
}

}  // namespace
}  // namespace deepinfer
