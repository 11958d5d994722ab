// Raw log-probabilities against extended precision, and the order of the top list.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/sampler.h"
#include "unit/engine/reference_sampler.h"

namespace deepinfer {
namespace {

std::vector<float> RandomLogits(size_t n, float deviation, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> z(n);
  for (float& v : z) v = normal(rng);
  return z;
}

long double OracleLogSum(const std::vector<float>& z) {
  long double max = -INFINITY, sum = 0;
  for (float v : z) max = std::max(max, static_cast<long double>(v));
  for (float v : z) sum += std::exp(static_cast<long double>(v) - max);
  return max + std::log(sum);
}

TEST(RawLogprobs, IsTheRoundedLogSoftmax) {
  for (size_t n : {1, 2, 15, 16, 17, 512, 8224, 129280}) {
    for (float deviation : {0.0f, 1.0f, 20.0f, 1e4f}) {
      const std::vector<float> z = RandomLogits(n, deviation, static_cast<uint32_t>(n));
      const long double log_sum = OracleLogSum(z);
      for (size_t i = 0; i < n; i += 1 + n / 7) {
        const float got = RawLogprobs(z, static_cast<int32_t>(i), 0).logprob;
        const auto want = static_cast<double>(static_cast<long double>(z[i]) - log_sum);
        // Half an fp32 step of the result plus the fp64 error of the sum.
        EXPECT_NEAR(static_cast<double>(got), want, std::fabs(want) * 0x1p-23 + 1e-12)
            << n << " " << deviation;
        EXPECT_LE(got, 1e-6f);
      }
    }
  }
}

TEST(RawLogprobs, TopListIsInRankOrderAndHoldsTheChosenNumber) {
  std::vector<float> z = RandomLogits(600, 2.0f, 9);
  for (float& v : z) v = std::round(v * 4.0f) / 4.0f;
  const std::vector<int32_t> order = RankOrder(z);
  for (int32_t num_top : {0, 1, 20, 599, 600, 1000}) {
    const TokenLogprobs got = RawLogprobs(z, order[3], num_top);
    ASSERT_EQ(got.top.size(), static_cast<size_t>(std::min(num_top, 600)));
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].first, order[i]) << "rank " << i;
      EXPECT_EQ(got.top[i].second, RawLogprobs(z, order[i], 0).logprob);
    }
    if (num_top > 3) {
      EXPECT_EQ(got.top[3].second, got.logprob);
    }
  }
}

TEST(RawLogprobs, ZerosOfBothSignsRankById) {
  const std::vector<float> z = {-1.0f, 0.0f, -0.0f, 0.0f};
  const TokenLogprobs got = RawLogprobs(z, 1, 3);
  EXPECT_EQ(got.top[0].first, 1);
  EXPECT_EQ(got.top[1].first, 2);
  EXPECT_EQ(got.top[2].first, 3);
}

TEST(RawLogprobs, WithoutALimitNothingIsReportedForMissingTop) {
  EXPECT_TRUE(RawLogprobs(std::vector<float>{1.0f, 2.0f}, 0, -1).top.empty());
}

}  // namespace
}  // namespace deepinfer
