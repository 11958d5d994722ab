// The joint law of the first two tokens that verification by rejection emits, under temperatures,
// filters, penalties and masks: drafts and targets go through the sampler's own pipeline, and
// penalties count the drafts before a position. Seeds are fixed, so a result never changes.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "engine/verify.h"

namespace deepinfer {
namespace {

constexpr int32_t kVocab = 24;
constexpr uint64_t kDraws = 120'000;
constexpr uint64_t kPosition = 100;

struct LawCase {
  std::string name;
  SamplingParams params;
  uint32_t mask = 0;  // 0: all ids are legal
};

std::vector<LawCase> Cases() {
  std::vector<LawCase> cases;
  const auto add = [&](std::string name, float temperature, auto change, uint32_t mask = 0) {
    LawCase c{std::move(name), {}, mask};
    c.params.temperature = temperature;
    c.params.mode = SamplingMode::kRejection;
    change(&c.params);
    cases.push_back(std::move(c));
  };
  const auto none = [](SamplingParams*) {};
  add("T 0.3", 0.3f, none);
  add("T 0.7", 0.7f, none);
  add("T 1", 1.0f, none);
  add("T 2", 2.0f, none);
  add("top-k", 1.0f, [](SamplingParams* p) { p->top_k = 6; });
  add("top-p", 0.8f, [](SamplingParams* p) { p->top_p = 0.8f; });
  add("min-p", 1.5f, [](SamplingParams* p) { p->min_p = 0.1f; });
  add("top-k and top-p", 1.0f, [](SamplingParams* p) { p->top_k = 9, p->top_p = 0.9f; });
  add("penalties", 1.0f, [](SamplingParams* p) {
    p->repetition_penalty = 1.4f;
    p->frequency_penalty = 0.9f;
    p->presence_penalty = 0.5f;
  });
  add("bias and ban", 1.0f, [](SamplingParams* p) {
    p->logit_bias = {{3, 2.5f}, {4, -3.0f}};
    p->banned_sequences.emplace_back(1, 5);
    p->banned_sequences.emplace_back(std::vector<int32_t>{3, 7});
  });
  add("grammar mask", 1.0f, none, 0x00F3A9u);
  return cases;
}

// Logits of target and draft for the position behind `pending`: related, but not alike.
std::vector<float> Logits(bool of_draft, const std::vector<int32_t>& pending) {
  const uint32_t place = pending.empty() ? 0 : 1 + static_cast<uint32_t>(pending[0]);
  std::mt19937 shared(7 + place), own(1000 + place + (of_draft ? 500 : 0));
  // Each keeps half of a pair for its next call.
  std::normal_distribution<float> of_shared(0.0f, 1.2f), of_own(0.0f, 0.7f);
  std::vector<float> z(kVocab);
  for (float& v : z) v = of_shared(shared) + of_own(own);
  return z;
}

// The processed distributions of one case, computed once for each place.
class Distributions {
 public:
  explicit Distributions(const LawCase& c)
      : mask_{c.mask}, sampler_(c.params, std::vector<int32_t>{1, 2}, -1, -1) {}

  const Survivors& Of(bool of_draft, const std::vector<int32_t>& pending) {
    auto [found, is_new] = known_.try_emplace({of_draft, pending});
    if (is_new) {
      std::vector<float> logits = Logits(of_draft, pending);
      SampleRow row;
      row.logits = logits;
      row.position = static_cast<int64_t>(kPosition + pending.size());
      row.pending = pending;
      if (mask_[0] != 0) row.mask = mask_;
      EXPECT_TRUE(sampler_.Process(row, &scratch_, &found->second).ok());
    }
    return found->second;
  }

 private:
  std::vector<uint32_t> mask_;
  Sampler sampler_;
  SamplerScratch scratch_;
  std::map<std::pair<bool, std::vector<int32_t>>, Survivors> known_;
};

// One request: up to two drafts, and as many steps as it takes to emit two tokens.
std::vector<int32_t> TwoTokens(Distributions* d, uint64_t seed, int num_drafts, int64_t* accepted) {
  std::vector<int32_t> tokens;
  while (tokens.size() < 2) {
    std::vector<int32_t> drafts, pending = tokens;
    std::vector<Survivors> q;
    const size_t most = std::min<size_t>(static_cast<size_t>(num_drafts), 2 - tokens.size());
    const uint64_t position = kPosition + tokens.size();
    while (drafts.size() < most) {
      q.push_back(d->Of(true, pending));
      const auto k = static_cast<int32_t>(drafts.size());
      drafts.push_back(DrawDraft(q.back(), seed, position + drafts.size(), k + 1));
      pending.push_back(drafts.back());
    }
    const auto verified = VerifyByRejection(
        drafts, q,
        [&](int32_t k) -> Result<Survivors> {
          std::vector<int32_t> before = tokens;
          // Behind the second token nothing is looked at.
          for (int32_t i = 0; i + 1 < k && before.empty(); ++i) before.push_back(drafts[0]);
          return d->Of(false, before);
        },
        seed, position);
    EXPECT_TRUE(verified.ok());
    *accepted += verified->num_accepted;
    for (int32_t i = 0; i < verified->num_accepted; ++i) {
      tokens.push_back(drafts[static_cast<size_t>(i)]);
    }
    tokens.push_back(verified->token);
  }
  tokens.resize(2);
  return tokens;
}

double Probability(const Survivors& s, size_t i) {
  return static_cast<double>(s.weights[i]) / static_cast<double>(s.total);
}

// Chi-squared in standard deviations of a normal variable (Wilson and Hilferty); rare pairs are one
// bin.
double Sigmas(Distributions* d, const std::map<std::vector<int32_t>, int64_t>& counts) {
  double chi = 0, rare = 0;
  int64_t rare_count = 0, seen = 0;
  int bins = 0;
  const Survivors first = d->Of(false, {});
  for (size_t i = 0; i < first.ids.size(); ++i) {
    const Survivors second = d->Of(false, std::vector<int32_t>(1, first.ids[i]));
    for (size_t j = 0; j < second.ids.size(); ++j) {
      const double expected =
          Probability(first, i) * Probability(second, j) * static_cast<double>(kDraws);
      const auto found = counts.find({first.ids[i], second.ids[j]});
      const int64_t count = found == counts.end() ? 0 : found->second;
      seen += count;
      if (expected < 20) {
        rare += expected;
        rare_count += count;
        continue;
      }
      ++bins;
      chi += std::pow(static_cast<double>(count) - expected, 2) / expected;
    }
  }
  EXPECT_EQ(seen, static_cast<int64_t>(kDraws)) << "pairs outside the law";
  if (rare >= 20) {
    ++bins;
    chi += std::pow(static_cast<double>(rare_count) - rare, 2) / rare;
  }
  EXPECT_GE(bins, 6) << "too few bins to say anything";
  const double k = bins - 1, v = 2 / (9 * k);
  return (std::cbrt(chi / k) - (1 - v)) / std::sqrt(v);
}

TEST(VerifyLaw, PairsOfTokensFollowTheTargetUnderEveryPipeline) {
  for (const LawCase& c : Cases()) {
    Distributions distributions(c);
    for (int num_drafts = 0; num_drafts <= 2; ++num_drafts) {
      std::map<std::vector<int32_t>, int64_t> counts;
      int64_t accepted = 0;
      for (uint64_t seed = 1; seed <= kDraws; ++seed) {
        ++counts[TwoTokens(&distributions, seed, num_drafts, &accepted)];
      }
      EXPECT_LT(Sigmas(&distributions, counts), 4.0) << c.name << " drafts " << num_drafts;
      EXPECT_EQ(accepted > 0, num_drafts > 0) << c.name;
      // Some were refused: two drafts for every pair would be the most.
      EXPECT_LT(accepted, static_cast<int64_t>(kDraws) * num_drafts + (num_drafts == 0)) << c.name;
    }
  }
}

}  // namespace
}  // namespace deepinfer
