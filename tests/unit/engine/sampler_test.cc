// The pipeline of one row: bans, penalties, bias, temperature, draw, and what it refuses.

#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "unit/engine/reference_sampler.h"

namespace deepinfer {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int32_t kEnd = 1;
constexpr int32_t kNoImage = -1;

SamplingParams Greedy() {
  SamplingParams p;
  p.temperature = 0.0f;
  return p;
}

int32_t SampleOne(const SamplingParams& params, const std::vector<float>& logits,
                  int64_t position = 5) {
  const Result<int32_t> id = SampleId(Sampler(params, {}, kEnd, kNoImage), logits, position);
  EXPECT_TRUE(id.ok()) << id.status().ToString();
  return id.ok() ? *id : -1;
}

std::vector<float> RandomLogits(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> z(n);
  for (float& v : z) v = normal(rng);
  return z;
}

TEST(Sampler, TemperatureZeroTakesTheLowestOfExactTies) {
  EXPECT_EQ(SampleOne(Greedy(), {0.5f, 2.0f, 2.0f, 1.0f}), 1);
  EXPECT_EQ(SampleOne(Greedy(), {-1.0f, -0.0f, 0.0f}), 1);
  SamplingParams tiny = Greedy();
  tiny.temperature = 0.9e-5f;
  EXPECT_EQ(SampleOne(tiny, {0.0f, 0.0f, 0.0f}), 0);
}

TEST(Sampler, FollowsTheReferencePipeline) {
  const std::vector<float> z = RandomLogits(200, 4);
  SamplingParams p;
  p.temperature = 0.8f;
  p.top_k = 30;
  p.top_p = 0.95f;
  p.min_p = 0.01f;
  p.seed = 0x123456789abcdefULL;
  const Survivors s = ReferenceSurvivors(z, 0.8f, {30, 0.95f, 0.01f});
  for (int64_t at = 0; at < 100; ++at) {
    const auto position = static_cast<uint64_t>(at);
    p.mode = SamplingMode::kStrict;
    EXPECT_EQ(SampleOne(p, z, at), ReferenceRace(s, p.seed, position));
    p.mode = SamplingMode::kRejection;
    const PhiloxBlock b =
        Philox4x32({static_cast<uint32_t>(at), 0, 0, 0}, {0x89abcdefu, 0x1234567u});
    EXPECT_EQ(SampleOne(p, z, at), ReferenceCdf(s, uint64_t{b[1]} << 32 | b[0]));
  }
}

std::vector<float> MaximaOf(const std::vector<float>& z) {
  std::vector<float> maxima;
  for (size_t begin = 0; begin < z.size(); begin += kMaximaBlock) {
    const auto end = std::min(begin + size_t{kMaximaBlock}, z.size());
    maxima.push_back(*std::max_element(z.begin() + static_cast<std::ptrdiff_t>(begin),
                                       z.begin() + static_cast<std::ptrdiff_t>(end)));
  }
  return maxima;
}

// Ids that the parameters edit often hold the largest logits, which the maxima then overstate.
SamplingParams RandomParams(const std::vector<float>& z, std::mt19937* rng) {
  const auto one_in = [rng](uint32_t n) { return (*rng)() % n == 0; };
  const std::vector<int32_t> order = RankOrder(z);
  const auto any_id = [&] {
    return order[one_in(2) ? (*rng)() % std::min<size_t>(5, order.size())
                           : (*rng)() % order.size()];
  };
  SamplingParams p;
  p.temperature = one_in(3) ? 0.0f : 0.7f;
  p.mode = one_in(2) ? SamplingMode::kStrict : SamplingMode::kRejection;
  p.seed = (*rng)();
  if (one_in(2)) p.top_k = static_cast<int32_t>(1 + (*rng)() % 50);
  if (one_in(2)) p.top_p = 0.9f;
  if (one_in(3)) p.min_p = 0.05f;
  while (one_in(2)) p.banned_ids.push_back(any_id());
  while (one_in(3)) p.logit_bias.push_back({any_id(), one_in(2) ? 3.0f : -3.0f});
  if (one_in(3)) p.repetition_penalty = one_in(2) ? 1.5f : 0.5f;
  if (one_in(3)) p.min_tokens = 100;
  while (one_in(4)) p.allowed_ids.push_back(any_id());
  return p;
}

TEST(Sampler, MaximaOfBlocksChangeNothing) {
  std::mt19937 rng(31);
  SamplerScratch scratch;
  int num_drawn = 0;
  for (uint32_t round = 0; round < 3000; ++round) {
    std::vector<float> z = RandomLogits(1 + rng() % 400, round);
    if (round % 3 == 0) {
      for (float& v : z) v = std::round(v);  // many ties
    }
    const SamplingParams params = RandomParams(z, &rng);
    const Sampler sampler(params, RankOrder(z), kEnd, static_cast<int32_t>(rng() % z.size()));
    std::vector<uint32_t> mask;
    if (round % 5 == 0) {
      for (size_t i = 0; i < (z.size() + 31) / 32; ++i) mask.push_back(rng() & rng());
    }
    SampleRow row{.logits = z, .position = 5, .pending = {}, .mask = mask};
    const Result<SampledToken> plain = sampler.Sample(row, &scratch);
    const std::vector<float> maxima = MaximaOf(z);
    row.maxima = maxima;
    const Result<SampledToken> bounded = sampler.Sample(row, &scratch);
    ASSERT_EQ(plain.ok(), bounded.ok()) << "round " << round;
    if (!plain.ok()) continue;
    ASSERT_EQ(plain->id, bounded->id) << "round " << round;
    ++num_drawn;
    if (params.temperature == 0.0f) continue;
    Survivors p, q;
    row.maxima = {};
    ASSERT_TRUE(sampler.Process(row, &scratch, &p).ok());
    row.maxima = maxima;
    ASSERT_TRUE(sampler.Process(row, &scratch, &q).ok());
    ASSERT_EQ(p.ids, q.ids) << "round " << round;
    ASSERT_EQ(p.weights, q.weights);
  }
  EXPECT_GT(num_drawn, 2000);
}

TEST(Sampler, AutoIsStrictWithASeedAndRejectionWithout) {
  const std::vector<float> z = RandomLogits(500, 5);
  SamplingParams p;
  p.seed = 77;
  int different = 0;
  for (int64_t at = 0; at < 50; ++at) {
    SamplingParams strict = p, rejection = p, with_seed = p;
    strict.mode = SamplingMode::kStrict;
    rejection.mode = SamplingMode::kRejection;
    with_seed.has_seed = true;
    EXPECT_EQ(SampleOne(with_seed, z, at), SampleOne(strict, z, at));
    EXPECT_EQ(SampleOne(p, z, at), SampleOne(rejection, z, at));
    different += SampleOne(strict, z, at) != SampleOne(rejection, z, at);
  }
  EXPECT_GT(different, 20) << "the two draws must be told apart";
}

// z > 0 is divided, else multiplied; then frequency·count + presence is taken off, output only.
TEST(Sampler, PenaltiesFollowTheFormula) {
  SamplingParams p = Greedy();
  p.repetition_penalty = 1.25f;
  p.frequency_penalty = 0.5f;
  p.presence_penalty = 0.25f;
  const std::vector<int32_t> prompt = {2, 2, 3, 5};
  const std::vector<int32_t> output = {4, 4, 4, 5, 6};
  const std::vector<float> z = {0.5f, 0.1f, 2.0f, -2.0f, 3.0f, 1.5f, -1.0f, 0.7f};
  std::vector<float> want = z;
  for (int32_t id : {2, 3, 4, 5, 6}) {
    float& v = want[static_cast<size_t>(id)];
    v = v > 0 ? v / 1.25f : v * 1.25f;
  }
  want[4] -= 0.5f * 3 + 0.25f;
  want[5] -= 0.5f + 0.25f;
  want[6] -= 0.5f + 0.25f;
  // Bias lifts one id after another just to or just below the best penalised logit, which reads
  // every penalised value back through argmax.
  const int32_t best =
      static_cast<int32_t>(std::max_element(want.begin(), want.end()) - want.begin());
  for (int32_t id = 0; id < 8; ++id) {
    if (id == best) continue;
    for (float margin : {-1e-3f, 1e-3f}) {
      const float lift = want[static_cast<size_t>(best)] - want[static_cast<size_t>(id)] + margin;
      p.logit_bias = {{id, lift}};
      Sampler sampler(p, prompt, kEnd, kNoImage);
      for (int32_t out : output) sampler.Commit(out);
      EXPECT_EQ(*SampleId(sampler, z, 10), margin > 0 ? id : best) << id;
    }
  }
}

TEST(Sampler, RepetitionPenaltyCountsOutputWithoutAPrompt) {
  SamplingParams p = Greedy();
  p.repetition_penalty = 2.0f;
  Sampler sampler(p, {}, kEnd, kNoImage);
  const std::vector<float> z = {3.0f, 0.0f, 2.0f};
  EXPECT_EQ(*SampleId(sampler, z, 0), 0);
  sampler.Commit(0);
  EXPECT_EQ(*SampleId(sampler, z, 1), 2);
}

TEST(Sampler, LogitBiasAddsUpAndCannotLiftABan) {
  SamplingParams p = Greedy();
  p.logit_bias = {{2, 50.0f}, {2, 50.0f}, {3, 99.0f}};
  EXPECT_EQ(SampleOne(p, {0.0f, 0.0f, 0.0f, 0.0f}), 2);
  p.banned_ids = {2};
  EXPECT_EQ(SampleOne(p, {0.0f, 0.0f, 0.0f, 0.0f}), 3);
}

TEST(Sampler, TheImageTokenIsNeverDrawn) {
  Sampler sampler(Greedy(), {}, kEnd, 2);
  EXPECT_EQ(*SampleId(sampler, {0.0f, 0.0f, 9.0f, 1.0f}, 0), 3);
}

TEST(Sampler, EndAndStopIdsAreBannedUntilMinTokens) {
  SamplingParams p = Greedy();
  p.min_tokens = 2;
  p.stop_token_ids = {3};
  Sampler sampler(p, {}, kEnd, kNoImage);
  const std::vector<float> z = {0.0f, 5.0f, 1.0f, 4.0f};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*SampleId(sampler, z, i), 2) << i;
    sampler.Commit(2);
  }
  EXPECT_EQ(*SampleId(sampler, z, 2), kEnd);
}

TEST(Sampler, TheEndTokenAloneCanBeHeldBackLonger) {
  SamplingParams p = Greedy();
  p.num_tokens_without_end = 1;
  p.stop_token_ids = {3};
  Sampler sampler(p, {}, kEnd, kNoImage);
  EXPECT_EQ(*SampleId(sampler, {0.0f, 5.0f, 1.0f, 4.0f}, 0), 3);
  sampler.Commit(3);
  EXPECT_EQ(*SampleId(sampler, {0.0f, 5.0f, 1.0f, 4.0f}, 1), kEnd);
}

TEST(Sampler, OnlyAllowedIdsAreDrawnAndBansAreStronger) {
  SamplingParams p = Greedy();
  p.allowed_ids = {0, 4, 2};
  EXPECT_EQ(SampleOne(p, {1.0f, 9.0f, 2.0f, 9.0f, 2.0f}), 2);
  p.banned_ids = {2};
  p.logit_bias = {{3, 100.0f}};
  EXPECT_EQ(SampleOne(p, {1.0f, 9.0f, 2.0f, 9.0f, 2.0f}), 4);
  p.banned_ids = {0, 2, 4};
  EXPECT_FALSE(SampleId(Sampler(p, {}, kEnd, kNoImage), {1.0f, 1.0f, 1.0f, 1.0f, 1.0f}, 0).ok());
}

TEST(Sampler, ABannedSequenceIsNeverCompleted) {
  SamplingParams p = Greedy();
  p.banned_sequences = {{2, 3, 4}, {5}};
  const std::vector<float> z = {0.0f, 0.0f, 1.0f, 1.0f, 3.0f, 4.0f};
  Sampler sampler(p, {}, kEnd, kNoImage);
  EXPECT_EQ(*SampleId(sampler, z, 0), 4);
  sampler.Commit(9);
  sampler.Commit(2);
  EXPECT_EQ(*SampleId(sampler, z, 2), 4);
  // The drafts before a row belong to its output.
  EXPECT_EQ(*SampleId(sampler, z, 3, std::vector<int32_t>{3}), 2);
  sampler.Commit(3);
  EXPECT_EQ(*SampleId(sampler, z, 3), 2);
  sampler.Commit(0);
  EXPECT_EQ(*SampleId(sampler, z, 4), 4);
}

// Deciding a row behind drafts is the same as deciding it after they were committed.
TEST(Sampler, PendingTokensCountLikeCommittedOnes) {
  std::mt19937 rng(31);
  const std::vector<int32_t> prompt = {3, 4, 4, 9};
  for (int trial = 0; trial < 500; ++trial) {
    SamplingParams p;
    p.temperature = trial % 2 == 0 ? 0.0f : 0.9f;
    p.repetition_penalty = 1.3f;
    p.frequency_penalty = 0.4f;
    p.presence_penalty = trial % 3 == 0 ? 0.0f : 0.7f;
    p.min_tokens = 3;
    p.banned_sequences = {{1, 2}, {2, 3, 4}};
    p.seed = rng();
    const std::vector<float> z = RandomLogits(12, rng());
    std::vector<int32_t> ids(1 + rng() % 7);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 6);
    const size_t num_committed = rng() % (ids.size() + 1);
    Sampler behind(p, prompt, kEnd, kNoImage), after(p, prompt, kEnd, kNoImage);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i < num_committed) behind.Commit(ids[i]);
      after.Commit(ids[i]);
    }
    const auto pending = std::span<const int32_t>(ids).subspan(num_committed);
    EXPECT_EQ(*SampleId(behind, z, 50, pending), *SampleId(after, z, 50)) << trial;
  }
}

TEST(Sampler, LeavesTheRowAsItWas) {
  SamplingParams p;
  p.repetition_penalty = 1.5f;
  p.presence_penalty = 1.0f;
  p.banned_ids = {0, 5, 5};
  p.logit_bias = {{5, 3.0f}, {2, 1.0f}, {2, 1.0f}};
  p.min_tokens = 4;
  Sampler sampler(p, std::vector<int32_t>{2, 5}, kEnd, 7);
  sampler.Commit(2);
  sampler.Commit(6);
  const std::vector<float> before = RandomLogits(40, 8);
  std::vector<float> z = before;
  SamplerScratch scratch;
  SampleRow row;
  row.logits = z;
  ASSERT_TRUE(sampler.Sample(row, &scratch).ok());
  EXPECT_EQ(z, before);
  z[3] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(sampler.Sample(row, &scratch).ok());
  z[3] = before[3];
  EXPECT_EQ(z, before);
}

TEST(Sampler, AForcedIdIsReportedInsteadOfADrawnOne) {
  SamplingParams p = Greedy();
  p.num_top_logprobs = 1;
  SamplerScratch scratch;
  std::vector<float> z = {0.0f, 1.0f, 2.0f};
  SampleRow row;
  row.logits = z;
  row.forced_id = 0;
  const Result<SampledToken> token = Sampler(p, {}, kEnd, kNoImage).Sample(row, &scratch);
  EXPECT_EQ(token->id, 0);
  EXPECT_EQ(token->logprobs.logprob, RawLogprobs(z, 0, 0).logprob);
  EXPECT_EQ(token->logprobs.top[0].first, 2);
}

TEST(Sampler, AllBannedIsAnErrorOfTheRequest) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.banned_ids = {0, 1, 2};
    const Result<int32_t> id = SampleId(Sampler(p, {}, kEnd, kNoImage), {1.0f, 2.0f, 3.0f}, 0);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidRequest);
    // One free token is drawn whatever its logit.
    p.banned_ids = {0, 2};
    EXPECT_EQ(SampleOne(p, {1.0f, -3e38f, 3.0f}), 1);
  }
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Result<int32_t> id = SampleId(Sampler(p, {}, kEnd, kNoImage), {1.0f, bad, 3.0f}, 0);
      EXPECT_EQ(id.status().code(), StatusCode::kDataCorruption);
    }
    EXPECT_EQ(SampleOne(p, {kNegInf, kNegInf, 3.0f}), 2);
    // A penalty near zero turns a logit into infinity: the client's doing, not a damaged model.
    p.repetition_penalty = 1e-40f;
    const Result<int32_t> id =
        SampleId(Sampler(p, std::vector<int32_t>{2}, kEnd, kNoImage), {1, 2, 3}, 0);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidRequest);
  }
}

}  // namespace
}  // namespace deepinfer
