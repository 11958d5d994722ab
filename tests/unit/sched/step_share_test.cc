#include "sched/step_share.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {
namespace {

using Shares = std::vector<int64_t>;

// Names in the order of the weights.
std::vector<std::string> NamesInOrder(size_t num) {
  std::vector<std::string> names;
  for (size_t i = 0; i < num; ++i) names.push_back(std::to_string(1'000'000 + i));
  return names;
}

Shares Divide(int64_t total, const Shares& weights, const std::vector<std::string>& names) {
  return DivideExactly(total, weights, std::vector<std::string_view>(names.begin(), names.end()));
}

Shares Divide(int64_t total, const Shares& weights) {
  return Divide(total, weights, NamesInOrder(weights.size()));
}

TEST(StepShare, TheLargestRemaindersGetTheRest) {
  EXPECT_EQ(Divide(100, Shares{1, 1, 1}), (Shares{34, 33, 33}));
  EXPECT_EQ(Divide(10, Shares{3, 3, 5}), (Shares{3, 3, 4}));
  // The worked example of a prefill step: 30 of 80 parts of eight devices for 4 ms.
  EXPECT_EQ(Divide(32'000'000, Shares{30, 50}).front(), 12'000'000);
  EXPECT_EQ(Divide(5, Shares{0, 0}), (Shares{0, 0}));
  EXPECT_TRUE(Divide(5, {}).empty());
}

TEST(StepShare, TheLowerNameGetsMoreOfATie) {
  EXPECT_EQ(Divide(100, {1, 1, 1}, {"c", "a", "b"}), (Shares{33, 34, 33}));
  EXPECT_EQ(Divide(101, {1, 1, 1}, {"c", "b", "a"}), (Shares{33, 34, 34}));
}

RC_GTEST_PROP(StepShareProperty, TheOrderOfTheRequestsChangesNothing, ()) {
  const int64_t total = *rc::gen::inRange<int64_t>(0, 1'000'000);
  const auto weights =
      *rc::gen::nonEmpty(rc::gen::container<Shares>(rc::gen::inRange<int64_t>(0, 6)));
  const std::vector<std::string> names = NamesInOrder(weights.size());
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  Shares shuffled_weights;
  std::vector<std::string> shuffled_names;
  for (const size_t i : order) {
    shuffled_weights.push_back(weights[i]);
    shuffled_names.push_back(names[i]);
  }
  const Shares shares = Divide(total, weights, names);
  const Shares shuffled = Divide(total, shuffled_weights, shuffled_names);
  for (size_t i = 0; i < order.size(); ++i) RC_ASSERT(shuffled[i] == shares[order[i]]);
}

RC_GTEST_PROP(StepShareProperty, SharesAddUpAndFollowTheWeights, ()) {
  const int64_t total = *rc::gen::inRange<int64_t>(0, int64_t{1} << 50);
  const auto weights = *rc::gen::nonEmpty(
      rc::gen::container<Shares>(rc::gen::inRange<int64_t>(0, int64_t{1} << 55)));
  const Shares shares = Divide(total, weights);
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
