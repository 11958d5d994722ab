// Attempts: only a higher one enters; memory of them ends.

#include "cluster/run_fence.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kMinuteUs = 60'000'000;

TEST(RunFence, OnlyAHigherAttemptEnters) {
  RunFence fence;
  EXPECT_TRUE(fence.Enter("a", 1, 0));
  EXPECT_FALSE(fence.Enter("a", 1, 1)) << "a repeated message";
  EXPECT_TRUE(fence.Enter("a", 3, 2));
  EXPECT_FALSE(fence.Enter("a", 2, 3)) << "a late message";
  EXPECT_TRUE(fence.Enter("b", 1, 4));
}

TEST(RunFence, KnowsAnAttemptThatWasCancelledBeforeItCame) {
  RunFence fence;
  fence.Cancel("a", 2, 0);
  EXPECT_FALSE(fence.Enter("a", 2, 1));
  EXPECT_FALSE(fence.TakeCancelled("a", 1)) << "a lower one is just late";
  EXPECT_TRUE(fence.TakeCancelled("a", 2));
  EXPECT_FALSE(fence.TakeCancelled("a", 2)) << "told once";
  EXPECT_TRUE(fence.Enter("b", 1, 2));
  fence.Cancel("b", 1, 3);
  EXPECT_FALSE(fence.TakeCancelled("b", 1)) << "it runs, and its end will be told";
  fence.Cancel("c", 1, 4);
  EXPECT_TRUE(fence.Enter("c", 2, 5));
  EXPECT_FALSE(fence.TakeCancelled("c", 2)) << "another attempt";
}

TEST(RunFence, RemembersForTenMinutesAfterTheLastAttempt) {
  RunFence fence;
  EXPECT_TRUE(fence.Enter("a", 1, 0));
  EXPECT_TRUE(fence.Enter("a", 2, 9 * kMinuteUs));
  EXPECT_FALSE(fence.Enter("a", 2, 15 * kMinuteUs));
  EXPECT_TRUE(fence.Enter("b", 1, 20 * kMinuteUs));
  EXPECT_EQ(fence.size(), 1u) << "nothing of a is kept";
}

}  // namespace
}  // namespace deepinfer
