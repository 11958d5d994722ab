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

// The lanes of the vector loop hold the sums that the plain loop over DetExp holds.
TEST(SumExp, EqualsThePlainLane16Sum) {
  for (size_t n : {1, 3, 8, 9, 16, 17, 31, 512, 5003}) {
    for (float deviation : {1.0f, 30.0f, 400.0f}) {
      std::vector<float> z = RandomLogits(n, deviation, static_cast<uint32_t>(n) + 1);
      if (n > 2) z[n / 2] = -INFINITY;
      const float max = *std::max_element(z.begin(), z.end());
      double lane[16] = {};
      for (size_t i = 0; i < n; ++i) {
        lane[i & 15] += DetExp(static_cast<double>(z[i]) - static_cast<double>(max));
      }
      for (size_t distance = 8; distance >= 1; distance /= 2) {
        for (size_t j = 0; j < distance; ++j) lane[j] += lane[j + distance];
      }
      EXPECT_EQ(SumExp(z, max), lane[0]) << n << " " << deviation;
    }
  }
}

SampledToken Report(const SamplingParams& p, std::vector<float> z, int32_t forced) {
  SamplerScratch scratch;
  SampleRow row;
  row.logits = z;
  row.forced_id = forced;
  const Result<SampledToken> token = Sampler(p, {}, 1, -1).Sample(row, &scratch);
  EXPECT_TRUE(token.ok());
  return token.ok() ? *token : SampledToken();
}

TEST(ProcessedLogprobs, AreTheLogsOfTheSurvivingShares) {
  const float h = std::log(2.0f);
  SamplingParams p;
  p.num_top_logprobs = 4;
  p.logprobs_kind = LogprobsKind::kProcessed;
  p.top_k = 3;
  p.temperature = 2.0f;
  p.logit_bias = {{0, 2 * h}};
  // With the bias 0, -2h, -4h, -6h at temperature 2: weights 1, 1/2, 1/4 and one removed.
  const std::vector<float> z = {-2 * h, -2 * h, -4 * h, -6 * h};
  const TokenLogprobs got = Report(p, z, 2).logprobs;
  EXPECT_NEAR(got.logprob, std::log(0.25 / 1.75), 1e-6);
  ASSERT_EQ(got.top.size(), 4u);
  EXPECT_EQ(got.top[0].first, 0);
  EXPECT_NEAR(got.top[0].second, std::log(1 / 1.75), 1e-6);
  EXPECT_EQ(got.top[2].second, got.logprob);
  EXPECT_EQ(got.top[3].first, 3);
  EXPECT_EQ(got.top[3].second, -INFINITY);
  EXPECT_EQ(Report(p, z, 3).logprobs.logprob, -INFINITY);
}

TEST(ProcessedLogprobs, AtTemperatureZeroDescribeTheEditedLogitsWithoutFilters) {
  SamplingParams p;
  p.num_top_logprobs = 2;
  p.logprobs_kind = LogprobsKind::kProcessed;
  p.temperature = 0.0f;
  p.top_k = 1;
  p.banned_ids = {3};
  std::vector<float> z = RandomLogits(50, 2.0f, 3);
  const TokenLogprobs got = Report(p, z, -1).logprobs;
  z[3] = -INFINITY;
  const TokenLogprobs want = RawLogprobs(z, RankOrder(z)[0], 2);
  EXPECT_EQ(got.logprob, want.logprob);
  EXPECT_EQ(got.top, want.top);
}

TEST(RawLogprobs, IgnoreWhatTheRequestDoesToTheLogits) {
  SamplingParams p;
  p.num_top_logprobs = 3;
  p.temperature = 0.5f;
  p.banned_ids = {0};
  p.allowed_ids = {0, 1, 2};
  p.top_k = 1;
  const std::vector<float> z = {5.0f, 1.0f, 2.0f, 4.0f};
  const SampledToken got = Report(p, z, -1);
  EXPECT_EQ(got.id, 2);
  EXPECT_EQ(got.logprobs.logprob, RawLogprobs(z, 2, 0).logprob);
  EXPECT_EQ(got.logprobs.top, RawLogprobs(z, 2, 3).top);
}

TEST(MassBelowReport, IsTheShareOfTheProcessedDistribution) {
  SamplingParams p;
  p.num_top_logprobs = 0;
  p.mass_below = true;
  const float h = std::log(2.0f);
  EXPECT_NEAR(Report(p, {0.0f, -h, -h}, 1).logprobs.mass_below, 0.25, 1e-6);
  p.banned_ids = {0};
  EXPECT_NEAR(Report(p, {0.0f, -h, -h}, 1).logprobs.mass_below, 0.5, 1e-6);
}

TEST(RawLogprobs, WithoutALimitNothingIsReportedForMissingTop) {
  EXPECT_TRUE(RawLogprobs(std::vector<float>{1.0f, 2.0f}, 0, -1).top.empty());
}

}  // namespace
}  // namespace deepinfer
