#include "sched/step_share.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace deepinfer {
namespace {

using Shares = std::vector<int64_t>;

TEST(StepShare, TheLargestRemaindersGetTheRest) {
  EXPECT_EQ(DivideExactly(100, Shares{1, 1, 1}), (Shares{34, 33, 33}));
  EXPECT_EQ(DivideExactly(10, Shares{3, 3, 5}), (Shares{3, 3, 4}));
  // The worked example of a prefill step: 30 of 80 parts of eight devices for 4 ms.
  EXPECT_EQ(DivideExactly(32'000'000, Shares{30, 50}).front(), 12'000'000);
  EXPECT_EQ(DivideExactly(5, Shares{0, 0}), (Shares{0, 0}));
  EXPECT_TRUE(DivideExactly(5, {}).empty());
}

RC_GTEST_PROP(StepShareProperty, SharesAddUpAndFollowTheWeights, ()) {
  const int64_t total = *rc::gen::inRange<int64_t>(0, int64_t{1} << 50);
  const auto weights = *rc::gen::nonEmpty(
      rc::gen::container<Shares>(rc::gen::inRange<int64_t>(0, int64_t{1} << 55)));
  const Shares shares = DivideExactly(total, weights);
  if (std::all_of(weights.begin(), weights.end(), [](int64_t w) { return w == 0; })) {
    RC_ASSERT(std::accumulate(shares.begin(), shares.end(), int64_t{0}) == 0);
    return;
  }
  RC_ASSERT(std::accumulate(shares.begin(), shares.end(), int64_t{0}) == total);
  for (size_t i = 0; i < weights.size(); ++i) {
    RC_ASSERT(shares[i] >= 0);
    if (weights[i] == 0) RC_ASSERT(shares[i] <= 1);
    for (size_t k = 0; k < weights.size(); ++k) {
      if (weights[i] > weights[k]) RC_ASSERT(shares[i] >= shares[k]);
    }
  }
}

}  // namespace
}  // namespace deepinfer
