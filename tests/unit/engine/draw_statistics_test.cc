// Chi-squared tests of both draws at three vocabulary sizes. Seeds are fixed, so a result never
// changes; the limits sit at four standard deviations.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "base/philox.h"
#include "engine/distribution.h"
#include "unit/engine/reference_sampler.h"

namespace deepinfer {
namespace {

struct Bins {
  std::vector<int32_t> of_id;       // bin of a survivor, by place in Survivors
  std::vector<double> probability;  // of each bin
};

// Groups survivors so that each bin expects at least 20 of the draws. Neighbours in a scattered
// order share a bin, so an error in one region of ids cannot cancel inside it.
Bins MakeBins(const Survivors& s, int draws, double min_expected) {
  std::vector<size_t> order(s.ids.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 rng(1);
  std::shuffle(order.begin(), order.end(), rng);
  Bins b;
  b.of_id.resize(s.ids.size());
  double open = 0;
  b.probability.push_back(0);
  for (size_t i : order) {
    if (open * draws >= min_expected) {
      b.probability.push_back(0);
      open = 0;
    }
    const double p = static_cast<double>(s.weights[i]) / static_cast<double>(s.total);
    open += p;
    b.probability.back() += p;
    b.of_id[i] = static_cast<int32_t>(b.probability.size() - 1);
  }
  if (open * draws < min_expected && b.probability.size() > 1) {
    const auto last = static_cast<int32_t>(b.probability.size() - 1);
    for (int32_t& bin : b.of_id) bin -= bin == last;
    b.probability.pop_back();
    b.probability.back() += open;
  }
  return b;
}

// The statistic in standard deviations of a normal variable (Wilson and Hilferty).
double ChiSquaredSigmas(const Survivors& s, int draws,
                        const std::function<int32_t(uint64_t)>& draw) {
  const Bins bins = MakeBins(s, draws, 20);
  std::vector<int> count(bins.probability.size());
  for (uint64_t position = 0; position < static_cast<uint64_t>(draws); ++position) {
    const int32_t id = draw(position);
    const auto it = std::lower_bound(s.ids.begin(), s.ids.end(), id);
    EXPECT_TRUE(it != s.ids.end() && *it == id) << id << " is no survivor";
    ++count[static_cast<size_t>(bins.of_id[static_cast<size_t>(it - s.ids.begin())])];
  }
  double chi = 0;
  for (size_t b = 0; b < count.size(); ++b) {
    const double expected = bins.probability[b] * draws;
    chi += (count[b] - expected) * (count[b] - expected) / expected;
  }
  const double k = static_cast<double>(count.size()) - 1;
  EXPECT_GE(k, 5) << "too few bins to say anything";
  const double v = 2 / (9 * k);
  return (std::cbrt(chi / k) - (1 - v)) / std::sqrt(v);
}

std::vector<float> RandomLogits(size_t vocab, float deviation) {
  std::mt19937 rng(static_cast<uint32_t>(vocab));
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> z(vocab);
  for (float& v : z) v = normal(rng);
  return z;
}

struct Case {
  size_t vocab;
  float deviation;
  int cdf_draws, race_draws;
};

class DrawStatistics : public ::testing::TestWithParam<Case> {};

TEST_P(DrawStatistics, CdfFollowsTheWeights) {
  const std::vector<float> z = RandomLogits(GetParam().vocab, GetParam().deviation);
  const LogitRow row = MakeLogitRow(z, {}, SummarizeRow(z), 1.0f);
  DistributionScratch scratch;
  const double sigmas =
      ChiSquaredSigmas(SurvivorsOf(z, 1.0f, {}), GetParam().cdf_draws, [&](uint64_t at) {
        return DrawCdf(row, RandomBits(RandomBlock(99, at, RandomPurpose::kSample, 0)), &scratch);
      });
  EXPECT_LT(std::fabs(sigmas), 4);
}

TEST_P(DrawStatistics, RaceFollowsTheWeights) {
  const std::vector<float> z = RandomLogits(GetParam().vocab, GetParam().deviation);
  const LogitRow row = MakeLogitRow(z, {}, SummarizeRow(z), 1.0f);
  const double sigmas = ChiSquaredSigmas(SurvivorsOf(z, 1.0f, {}), GetParam().race_draws,
                                         [&](uint64_t at) { return DrawRace(row, 99, at); });
  EXPECT_LT(std::fabs(sigmas), 4);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, DrawStatistics,
                         ::testing::Values(Case{7, 1.0f, 100000, 100000},
                                           Case{512, 2.0f, 100000, 20000},
                                           Case{129280, 2.0f, 8000, 800}),
                         [](const auto& p) {
                           return std::string("V").append(std::to_string(p.param.vocab));
                         });

// The tests above would notice a distribution that is slightly wrong.
TEST(DrawStatisticsPower, ATenthOffTheTemperatureIsRejected) {
  const std::vector<float> z = RandomLogits(512, 2.0f);
  const Survivors claimed = SurvivorsOf(z, 1.0f, {}), drawn = SurvivorsOf(z, 1.1f, {});
  EXPECT_GT(ChiSquaredSigmas(claimed, 20000, [&](uint64_t at) { return DrawRace(drawn, 99, at); }),
            4);
  EXPECT_GT(ChiSquaredSigmas(
                claimed, 20000,
                [&](uint64_t at) {
                  return DrawCdf(drawn, RandomBits(RandomBlock(99, at, RandomPurpose::kSample, 0)));
                }),
            4);
}

}  // namespace
}  // namespace deepinfer
