// Weights, filters and draws against the plain reference sampler, and the edges of each rule.

#include "engine/distribution.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "unit/engine/reference_sampler.h"

namespace deepinfer {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

template <typename T>
T Pick(std::mt19937_64* rng, std::initializer_list<T> values) {
  return values.begin()[(*rng)() % values.size()];
}

// Rows of every kind: smooth, coarse with exact ties, zeros of both signs, huge, banned entries.
std::vector<float> RandomRow(std::mt19937_64* rng) {
  const size_t n = (*rng)() % 50 == 0 ? 300 + (*rng)() % 400 : 1 + (*rng)() % 40;
  std::vector<float> z(n);
  std::normal_distribution<float> normal(0.0f, Pick(rng, {0.1f, 1.0f, 3.0f, 12.0f}));
  const uint64_t kind = (*rng)() % 6;
  for (float& v : z) {
    v = normal(*rng);
    if (kind == 1) v = std::round(v);
    if (kind == 2) v = std::round(v) * 0.0f;
    if (kind == 3) v = Pick(rng, {0.0f, -0.0f, 1e-45f, -1e-45f, v});
    if (kind == 4) v = Pick(rng, {3.4e38f, -3.4e38f, v, 3.3e38f});
  }
  const uint64_t ban = (*rng)() % 4;
  for (size_t i = 0; i < n; ++i) {
    if ((ban == 0 && (*rng)() % 2 == 0) || (ban == 1 && i != n / 2)) z[i] = kNegInf;
  }
  if ((*rng)() % 200 == 0) std::fill(z.begin(), z.end(), kNegInf);
  return z;
}

FilterParams RandomFilters(std::mt19937_64* rng) {
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  FilterParams f;
  f.top_k = Pick(rng, {0, 0, 1, 2, 3, 7, 50, 1 << 20});
  f.top_p = Pick(rng, {1.0f, 1.0f, 1e-9f, 1e-11f, 0.5f, 0.9f, 0.99999997f, unit(*rng) + 1e-6f});
  if (f.top_p > 1.0f) f.top_p = 1.0f;
  f.min_p = Pick(rng, {0.0f, 0.0f, 1.0f, 1e-9f, 0.05f, unit(*rng)});
  return f;
}

TEST(BuildSurvivors, EqualsTheReferenceOnRandomRows) {
  std::mt19937_64 rng(20260101);
  int empty = 0, single = 0, cut = 0;
  DistributionScratch scratch;
  for (int row = 0; row < 100000; ++row) {
    const std::vector<float> z = RandomRow(&rng);
    const FilterParams f = RandomFilters(&rng);
    const float t = Pick(&rng, {1.0f, 0.7f, 2.0f, 1e-5f, 0.01f});
    const Survivors want = ReferenceSurvivors(z, t, f);
    const Survivors got = SurvivorsOf(z, t, f);
    ASSERT_EQ(got.ids, want.ids) << "row " << row << " k " << f.top_k << " p " << f.top_p
                                 << " min_p " << f.min_p << " t " << t;
    ASSERT_EQ(got.weights, want.weights) << row;
    ASSERT_EQ(got.total, want.total) << row;
    empty += want.ids.empty();
    single += want.ids.size() == 1;
    cut += want.ids.size() > 1 && want.ids.size() < z.size();
    if (want.ids.empty()) continue;
    const uint64_t x = Pick<uint64_t>(&rng, {0, ~uint64_t{0}, rng(), rng(), rng()});
    ASSERT_EQ(DrawCdf(got, x), ReferenceCdf(want, x)) << row;
    const uint64_t position = rng() >> 32;
    ASSERT_EQ(DrawRace(got, x, position), ReferenceRace(want, x, position)) << row;
    // The draws from a whole row, which never build a list of survivors.
    const LogitRow whole = MakeLogitRow(z, {}, SummarizeRow(z), t);
    const Survivors all = ReferenceSurvivors(z, t, {});
    ASSERT_EQ(DrawCdf(whole, x, &scratch), ReferenceCdf(all, x)) << row;
    ASSERT_EQ(DrawRace(whole, x, position), ReferenceRace(all, x, position)) << row;
  }
  // The generator must reach the rare shapes, or the loop proves little.
  EXPECT_GT(empty, 100);
  EXPECT_GT(single, 10000);
  EXPECT_GT(cut, 10000);
}

TEST(BuildSurvivors, EqualsTheReferenceOnAWholeVocabulary) {
  std::mt19937_64 rng(7);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> z(129280);
  for (float& v : z) v = std::round(normal(rng) * 64.0f) / 64.0f;
  const LogitRow row = MakeLogitRow(z, {}, SummarizeRow(z), 1.0f);
  const Survivors all = ReferenceSurvivors(z, 1.0f, {});
  DistributionScratch scratch;
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(DrawCdf(row, position << 59, &scratch), ReferenceCdf(all, position << 59));
    EXPECT_EQ(DrawRace(row, 5, position), ReferenceRace(all, 5, position));
  }
  for (const FilterParams& f : {FilterParams{}, FilterParams{20, 1.0f, 0.0f},
                                FilterParams{0, 0.9f, 0.0f}, FilterParams{5000, 0.97f, 1e-4f}}) {
    const Survivors got = SurvivorsOf(z, 1.0f, f), want = ReferenceSurvivors(z, 1.0f, f);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.total, want.total);
    for (uint64_t position = 0; position < 20; ++position) {
      EXPECT_EQ(DrawCdf(got, position << 59), ReferenceCdf(want, position << 59));
      EXPECT_EQ(DrawRace(got, 5, position), ReferenceRace(want, 5, position));
    }
  }
}

TEST(BuildSurvivors, EqualsTheReferenceWhereThousandsSurvive) {
  std::mt19937_64 rng(20260102);
  int thousands = 0;
  for (int row = 0; row < 400; ++row) {
    const size_t n = 2500 + rng() % 4000;
    std::normal_distribution<float> normal(0.0f, Pick(&rng, {0.01f, 0.5f, 2.0f, 5.0f}));
    const float grain = Pick(&rng, {0.0f, 0.125f, 1.0f});
    std::vector<float> z(n);
    for (float& v : z) {
      v = normal(rng);
      if (grain > 0.0f) v = std::round(v / grain) * grain;
      if (rng() % 64 == 0) v = Pick(&rng, {kNegInf, -0.0f, 0.0f, -3.4e38f});
    }
    FilterParams f = RandomFilters(&rng);
    if (f.top_k > 0) f.top_k = static_cast<int32_t>(1 + rng() % n);
    const float t = Pick(&rng, {1.0f, 0.7f, 2.0f});
    const Survivors want = ReferenceSurvivors(z, t, f), got = SurvivorsOf(z, t, f);
    ASSERT_EQ(got.ids, want.ids) << "row " << row << " n " << n << " k " << f.top_k << " p "
                                 << f.top_p << " min_p " << f.min_p << " t " << t;
    ASSERT_EQ(got.weights, want.weights) << row;
    ASSERT_EQ(got.total, want.total) << row;
    thousands += want.ids.size() > 2000;
  }
  EXPECT_GT(thousands, 80);
}

TEST(BuildSurvivors, ZerosOfBothSignsTie) {
  const std::vector<float> z = {-0.0f, 0.0f, -0.0f, 0.0f, -1.0f};
  for (int32_t k = 1; k <= 4; ++k) {
    const Survivors s = SurvivorsOf(z, 1.0f, {k, 1.0f, 0.0f});
    std::vector<int32_t> lowest(static_cast<size_t>(k));
    std::iota(lowest.begin(), lowest.end(), 0);
    EXPECT_EQ(s.ids, lowest);
  }
  // Half of the mass lies before the third of four equal tokens.
  EXPECT_EQ(SurvivorsOf({z.begin(), z.begin() + 4}, 1.0f, {0, 0.5f, 0.0f}).ids,
            (std::vector<int32_t>{0, 1, 2}));
}

TEST(BuildSurvivors, TopPKeepsTheTokenThatCrossesTheThreshold) {
  // Weights 1, 1/2, 1/4, 1/4: shares .5 .25 .125 .125.
  const float h = std::log(2.0f);
  const std::vector<float> z = {-2 * h, 0.0f, -h, -2 * h};
  const auto ids = [&](float p) { return SurvivorsOf(z, 1.0f, {0, p, 0.0f}).ids; };
  EXPECT_EQ(ids(1e-9f), (std::vector<int32_t>{1}));
  EXPECT_EQ(ids(0.49f), (std::vector<int32_t>{1}));
  EXPECT_EQ(ids(0.51f), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids(0.76f), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(ids(0.88f), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(BuildSurvivors, FiltersIntersectOnTheFullDistribution) {
  const float h = std::log(2.0f);
  const std::vector<float> z = {0.0f, -h, -2 * h, -2 * h};
  // top_p looks at the whole distribution, not at the remainder of top_k.
  EXPECT_EQ(SurvivorsOf(z, 1.0f, {2, 0.51f, 0.0f}).ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(SurvivorsOf(z, 1.0f, {2, 0.49f, 0.0f}).ids, (std::vector<int32_t>{0}));
  EXPECT_EQ(SurvivorsOf(z, 1.0f, {3, 0.9f, 0.4f}).ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(SurvivorsOf(z, 1.0f, {0, 1.0f, 1.0f}).ids, (std::vector<int32_t>{0}));
}

TEST(BuildSurvivors, DropsTokensWithoutWeightEvenUnfiltered) {
  const std::vector<float> z = {0.0f, -40.0f, kNegInf, -31.0f};
  EXPECT_EQ(SurvivorsOf(z, 1.0f, {}).ids, (std::vector<int32_t>{0, 3}));
  EXPECT_TRUE(SurvivorsOf(std::vector<float>{kNegInf, kNegInf}, 1.0f, {}).ids.empty());
  EXPECT_EQ(SurvivorsOf(std::vector<float>{kNegInf, -3e38f}, 1e-5f, {}).ids,
            (std::vector<int32_t>{1}));
}

TEST(SummarizeRow, FindsTheLowestIdOfTheLargestLogit) {
  const auto best = [](const std::vector<float>& z) { return SummarizeRow(z).best; };
  EXPECT_EQ(best({1.0f, 3.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(best({-1.0f, -0.0f, 0.0f}), 1);
  EXPECT_EQ(best({-1.0f, 0.0f, -0.0f}), 1);
  EXPECT_EQ(best({kNegInf, kNegInf}), -1);
  EXPECT_EQ(best({kNegInf, -3.4e38f}), 1);
  EXPECT_EQ(best({}), -1);
  for (size_t n = 1; n < 40; ++n) {
    for (size_t at = 0; at < n; ++at) {
      std::vector<float> z(n, -5.0f);
      z[at] = -4.0f;
      EXPECT_EQ(best(z), static_cast<int32_t>(at)) << n;
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), -kNegInf}) {
        z[at] = bad;
        EXPECT_FALSE(SummarizeRow(z).drawable) << n << " " << at;
      }
    }
  }
}

// Weights of every magnitude against the formula, and their sums in blocks.
TEST(SumWeights, AddsTheWeightsOfEveryBlock) {
  std::mt19937_64 rng(11);
  for (size_t n : {1u, 7u, 8u, 9u, 2047u, 2048u, 2049u, 5000u}) {
    for (float t : {1.0f, 0.3f, 1e-5f}) {
      std::vector<float> z(n);
      for (float& v : z) v = -t * static_cast<float>(rng() % 5000) / 100.0f;
      z[rng() % n] = kNegInf;
      z[rng() % n] = 0.0f;
      const WeightScale scale = MakeWeightScale(0.0f, t);
      std::vector<uint64_t> want, got;
      for (size_t i = 0; i < n; ++i) {
        if (i % kLogitBlock == 0) want.push_back(0);
        want.back() += static_cast<uint64_t>(
            std::rint(std::ldexp(double{DetExp2((z[i] - scale.max) * scale.per_logit)}, 46)));
      }
      const uint64_t total = SumWeights(z, scale, &got);
      EXPECT_EQ(got, want) << n << " " << t;
      EXPECT_EQ(total, std::accumulate(want.begin(), want.end(), uint64_t{0}));
    }
  }
}

TEST(TopRanks, FollowsTheRankOrder) {
  std::mt19937_64 rng(5);
  DistributionScratch scratch;
  for (int row = 0; row < 3000; ++row) {
    const std::vector<float> z = RandomRow(&rng);
    const RowSummary summary = SummarizeRow(z);
    if (summary.best < 0) continue;
    std::vector<int32_t> want = RankOrder(z);
    const size_t k = rng() % (z.size() + 3);
    if (want.size() > k) want.resize(k);
    ASSERT_EQ(TopRanks(z, summary.max, k, &scratch), want) << row;
  }
}

TEST(MassBelow, IsTheShareOfLaterRanks) {
  const float h = std::log(2.0f);
  // Shares 1/2, 1/4, 1/8, 1/8; the last two tie.
  const std::vector<float> z = {-2 * h, 0.0f, -h, -2 * h};
  const LogitRow row = MakeLogitRow(z, {}, SummarizeRow(z), 1.0f);
  DistributionScratch scratch;
  EXPECT_NEAR(MassBelow(row, 1, &scratch), 0.5, 1e-6);
  EXPECT_NEAR(MassBelow(row, 2, &scratch), 0.25, 1e-6);
  EXPECT_NEAR(MassBelow(row, 0, &scratch), 0.125, 1e-6);
  EXPECT_EQ(MassBelow(row, 3, &scratch), 0.0f);
}

TEST(DrawCdf, ReachesATokenOfProbabilityTwoToTheMinusForty) {
  const float z1 = -40.0f * std::log(2.0f);
  const Survivors s = SurvivorsOf(std::vector<float>{0.0f, z1}, 1.0f, {});
  ASSERT_EQ(s.ids.size(), 2u);
  EXPECT_NEAR(static_cast<double>(s.weights[1]), 64.0, 1.0);
  // The last share of the numbers belongs to it, and no more.
  const uint64_t first =
      static_cast<uint64_t>(((Wide{s.weights[0]} << 64) + s.total - 1) / s.total);
  EXPECT_EQ(DrawCdf(s, first), 1);
  EXPECT_EQ(DrawCdf(s, first - 1), 0);
  EXPECT_EQ(DrawCdf(s, ~uint64_t{0}), 1);
  EXPECT_NEAR(static_cast<double>(~uint64_t{0} - first) * 0x1p-64, 0x1p-40, 0x1p-45);
}

TEST(DrawRace, DependsOnSeedPositionAndDistributionOnly) {
  std::mt19937_64 rng(3);
  std::vector<float> z(100);
  for (float& v : z) v = static_cast<float>(rng() % 1000) / 250.0f;
  const Survivors s = SurvivorsOf(z, 1.0f, {});
  int by_position = 0, by_seed = 0;
  for (uint64_t p = 0; p < 64; ++p) {
    const int32_t id = DrawRace(s, 11, p);
    EXPECT_EQ(DrawRace(s, 11, p), id);
    by_position += DrawRace(s, 11, p + 1) != id;
    by_seed += DrawRace(s, 12, p) != id;
    // Taking away losers leaves the winner: noise belongs to the id, not to its place.
    Survivors fewer;
    for (size_t i = 0; i < s.ids.size(); ++i) {
      if (s.ids[i] != id && i % 3 == 0) continue;
      fewer.ids.push_back(s.ids[i]);
      fewer.weights.push_back(s.weights[i]);
    }
    EXPECT_EQ(DrawRace(fewer, 11, p), id);
  }
  EXPECT_GT(by_position, 32);
  EXPECT_GT(by_seed, 32);
}

// Strict drafts and targets use the same noise: they agree at least as often as the distance of
// the two distributions demands.
TEST(DrawRace, CouplesTwoDistributions) {
  std::mt19937_64 rng(17);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<float> p(40), q(40);
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = 2.0f * normal(rng);
      q[i] = p[i] + 0.5f * normal(rng);
    }
    const Survivors sp = SurvivorsOf(p, 1.0f, {}), sq = SurvivorsOf(q, 1.0f, {});
    double tv = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      tv += 0.5 * std::fabs(static_cast<double>(sp.weights[i]) / static_cast<double>(sp.total) -
                            static_cast<double>(sq.weights[i]) / static_cast<double>(sq.total));
    }
    const int draws = 2000;
    int equal = 0;
    for (uint64_t at = 0; at < draws; ++at) equal += DrawRace(sp, 1, at) == DrawRace(sq, 1, at);
    // Four standard deviations of a share of 2,000.
    EXPECT_GE(static_cast<double>(equal) / draws, (1 - tv) / (1 + tv) - 0.045) << trial;
  }
}

}  // namespace
}  // namespace deepinfer
