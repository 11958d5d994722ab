// Verification is lossless: the law of the output is that of the target.
#include "engine/verify.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "base/philox.h"

namespace deepinfer {
namespace {

constexpr int32_t kVocab = 4;
using Law = std::array<double, kVocab>;

Survivors Make(const std::vector<std::pair<int32_t, uint64_t>>& entries) {
  Survivors s;
  for (const auto& [id, weight] : entries) {
    s.ids.push_back(id);
    s.weights.push_back(weight);
    s.total += weight;
  }
  return s;
}

// Random weights of widely different size; some ids are missing, as behind filters and masks.
Survivors RandomSurvivors(std::mt19937_64* random, int32_t vocab = kVocab) {
  std::vector<std::pair<int32_t, uint64_t>> entries;
  for (int32_t id = 0; id < vocab; ++id) {
    if ((*random)() % 4 == 0) continue;
    entries.emplace_back(id, 1 + ((*random)() >> (18 + (*random)() % 40)));
  }
  if (entries.empty()) entries.emplace_back(static_cast<int32_t>((*random)() % vocab), 5);
  return Make(entries);
}

Law LawOf(const Survivors& s) {
  Law law{};
  for (size_t i = 0; i < s.ids.size(); ++i) {
    law[static_cast<size_t>(s.ids[i])] =
        static_cast<double>(s.weights[i]) / static_cast<double>(s.total);
  }
  return law;
}

// Share of the random bits with which the code accepts: acceptance falls with the bits.
double AcceptanceProbability(const Survivors& p, const Survivors& q, int32_t draft) {
  uint64_t accepted = 0, refused = uint64_t{1} << 52;
  if (AcceptsDraft(p, q, draft, ~uint64_t{0})) return 1.0;
  if (!AcceptsDraft(p, q, draft, 0)) return 0.0;
  while (refused - accepted > 1) {
    const uint64_t middle = accepted + (refused - accepted) / 2;
    (AcceptsDraft(p, q, draft, middle << 12) ? accepted : refused) = middle;
  }
  return static_cast<double>(refused) * 0x1p-52;
}

// The law of one verified position, from the decisions of the code and exact probabilities.
Law EmittedLaw(const Survivors& p, const Survivors& q) {
  Law law{};
  const Law residual = LawOf(ResidualOf(p, q));
  const Law drafted = LawOf(q);
  for (int32_t x = 0; x < kVocab; ++x) {
    const double accepted = AcceptanceProbability(p, q, x);
    law[static_cast<size_t>(x)] += drafted[static_cast<size_t>(x)] * accepted;
    for (size_t y = 0; y < kVocab; ++y) {
      law[y] += drafted[static_cast<size_t>(x)] * (1 - accepted) * residual[y];
    }
  }
  return law;
}

TEST(Verify, K06_TheLawOfAVerifiedPositionIsThatOfTheTarget) {
  constexpr uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    const Survivors p = RandomSurvivors(&random);
    const Survivors q = round % 7 == 0 ? p : RandomSurvivors(&random);
    const Law want = LawOf(p), got = EmittedLaw(p, q);
    for (size_t y = 0; y < kVocab; ++y) ASSERT_NEAR(got[y], want[y], 1e-12) << "round " << round;
  }
}

// Two drafts, each from a distribution of its own, and the bonus: the joint law of the first two
// emitted tokens, whatever the number of verified drafts.
TEST(Verify, K06_TheJointLawOfTwoPositionsIsThatOfTheTarget) {
  std::mt19937_64 random(21);
  for (int round = 0; round < 200; ++round) {
    std::vector<Survivors> p(1 + kVocab), q(1 + kVocab);
    for (auto& s : p) s = RandomSurvivors(&random);
    for (auto& s : q) s = RandomSurvivors(&random);
    // After a rejection or a cut the second token is drawn from its target in the next step.
    const Law first = EmittedLaw(p[0], q[0]);
    for (size_t a = 0; a < kVocab; ++a) {
      const Law want = LawOf(p[1 + a]);
      const double drafted =
          LawOf(q[0])[a] * AcceptanceProbability(p[0], q[0], static_cast<int32_t>(a));
      const Law second = EmittedLaw(p[1 + a], q[1 + a]);
      for (size_t b = 0; b < kVocab; ++b) {
        const double joint = drafted * second[b] + (first[a] - drafted) * want[b];
        ASSERT_NEAR(joint, LawOf(p[0])[a] * want[b], 1e-12);
      }
    }
  }
}

double ChiSquare(const std::vector<int64_t>& counts, const std::vector<double>& law) {
  int64_t total = 0;
  for (const int64_t c : counts) total += c;
  double sum = 0;
  for (size_t i = 0; i < law.size(); ++i) {
    const double expected = law[i] * static_cast<double>(total);
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    const double off = static_cast<double>(counts[i]) - expected;
    sum += off * off / expected;
  }
  return sum;
}

// The whole path with its own random numbers: drafts from q, verification, residual, bonus.
TEST(Verify, DrawnTokensFollowTheTarget) {
  const std::vector<Survivors> p = {Make({{0, 50}, {1, 30}, {2, 15}, {3, 5}}),
                                    Make({{0, 1}, {2, 9}, {3, 90}}),
                                    Make({{0, 25}, {1, 25}, {2, 25}, {3, 25}})};
  const std::vector<Survivors> q = {Make({{0, 20}, {1, 60}, {3, 20}}),
                                    Make({{0, 40}, {1, 40}, {2, 20}})};
  for (int num_drafts = 0; num_drafts <= 2; ++num_drafts) {
    std::vector<std::vector<int64_t>> counts(3, std::vector<int64_t>(kVocab, 0));
    int64_t accepted = 0;
    for (uint64_t seed = 1; seed <= 200'000; ++seed) {
      std::vector<int32_t> drafts;
      for (int k = 1; k <= num_drafts; ++k) {
        drafts.push_back(
            DrawDraft(q[static_cast<size_t>(k - 1)], seed, 99 + static_cast<uint64_t>(k), k));
      }
      const auto verified = VerifyByRejection(
          drafts, std::span(q).first(static_cast<size_t>(num_drafts)),
          [&](int32_t k) -> Result<Survivors> { return p[static_cast<size_t>(k - 1)]; }, seed, 100);
      ASSERT_TRUE(verified.ok());
      accepted += verified->num_accepted;
      for (int32_t k = 0; k < verified->num_accepted; ++k) {
        ++counts[static_cast<size_t>(k)][static_cast<size_t>(drafts[static_cast<size_t>(k)])];
      }
      ++counts[static_cast<size_t>(verified->num_accepted)][static_cast<size_t>(verified->token)];
    }
    for (int k = 0; k <= num_drafts; ++k) {
      const Law law = LawOf(p[static_cast<size_t>(k)]);
      // 16.27 is the 1e-3 quantile of three degrees of freedom.
      EXPECT_LT(ChiSquare(counts[static_cast<size_t>(k)], {law.begin(), law.end()}), 16.27)
          << "position " << k << " with " << num_drafts << " drafts";
    }
    EXPECT_EQ(accepted > 0, num_drafts > 0);
  }
}

TEST(Verify, AOneHotDraftIsAcceptedWithItsProbability) {
  const Survivors p = Make({{0, 1}, {1, 3}}), q = Make({{1, 7}});
  EXPECT_NEAR(AcceptanceProbability(p, q, 1), 0.75, 1e-15);
  const Survivors residual = ResidualOf(p, q);
  EXPECT_EQ(residual.ids, std::vector<int32_t>{0});
}

TEST(Verify, EqualDistributionsAcceptEveryDraft) {
  std::mt19937_64 random(22);
  for (int round = 0; round < 500; ++round) {
    const Survivors p = RandomSurvivors(&random, 50);
    for (const int32_t id : p.ids) EXPECT_TRUE(AcceptsDraft(p, p, id, ~uint64_t{0}));
    EXPECT_EQ(ResidualOf(p, p).ids, p.ids);
  }
}

TEST(Verify, ADraftTheTargetExcludesIsRefused) {
  EXPECT_FALSE(AcceptsDraft(Make({{0, 1}}), Make({{0, 1}, {1, 1}}), 1, 0));
}

TEST(Verify, ByEqualityDraftsStayUntilTheFirstDifference) {
  const std::vector<int32_t> targets = {7, 8, 9, 10, 11, 12};
  for (int32_t num_drafts = 0; num_drafts <= 5; ++num_drafts) {
    for (int32_t difference = 0; difference <= num_drafts; ++difference) {
      std::vector<int32_t> drafts(targets.begin(), targets.begin() + num_drafts);
      if (difference < num_drafts) drafts[static_cast<size_t>(difference)] = 0;
      int32_t num_asked = 0;
      const auto verified = VerifyByEquality(drafts, [&](int32_t k) -> Result<int32_t> {
        EXPECT_EQ(k, ++num_asked);
        return targets[static_cast<size_t>(k - 1)];
      });
      ASSERT_TRUE(verified.ok());
      EXPECT_EQ(verified->num_accepted, difference);
      EXPECT_EQ(verified->token, targets[static_cast<size_t>(difference)]);
      EXPECT_EQ(num_asked, difference + 1);
    }
  }
}

// Strict mode with the same noise on both sides: acceptance is at least (1 - TV) / (1 + TV).
TEST(Verify, SharedNoiseMakesRaceDrawsAgree) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 20; ++round) {
    const Survivors p = RandomSurvivors(&random), q = RandomSurvivors(&random);
    const Law a = LawOf(p), b = LawOf(q);
    double distance = 0;
    for (size_t i = 0; i < kVocab; ++i) distance += std::fabs(a[i] - b[i]) / 2;
    int equal = 0;
    constexpr int kDraws = 4000;
    for (uint64_t position = 0; position < kDraws; ++position) {
      equal += DrawRace(p, 5, position) == DrawRace(q, 5, position);
    }
    // Four standard deviations of a share of 4,000 draws.
    EXPECT_GE(static_cast<double>(equal) / kDraws, (1 - distance) / (1 + distance) - 0.032)
        << "round " << round;
  }
}

TEST(Verify, ErrorsOfTheTargetEndTheVerification) {
  const std::vector<int32_t> drafts = {1, 2};
  const auto equal = VerifyByEquality(drafts, [](int32_t k) -> Result<int32_t> {
    if (k == 2) return InvalidRequest("no legal token");
    return 1;
  });
  EXPECT_EQ(equal.status().code(), StatusCode::kInvalidRequest);
  const std::vector<Survivors> q(2, Make({{1, 1}, {2, 1}}));
  const auto rejection = VerifyByRejection(
      drafts, q, [](int32_t) -> Result<Survivors> { return InvalidRequest("no legal token"); }, 1,
      1);
  EXPECT_EQ(rejection.status().code(), StatusCode::kInvalidRequest);
}

}  // namespace
}  // namespace deepinfer
