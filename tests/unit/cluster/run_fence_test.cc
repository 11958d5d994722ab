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
