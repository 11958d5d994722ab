// Drafts change no token at temperature 0 and in strict mode, and no law in rejection mode, however
// many are verified and accepted (dspark.md §4, §6).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

EngineOptions WithDrafts(VerifyPolicy verify, int32_t draft_tokens = 5) {
  EngineOptions o;
  o.speculation.verify = verify;
  o.speculation.draft_tokens = draft_tokens;
  return o;
}

EngineOptions WithoutDrafts() {
  EngineOptions o;
  o.speculation.enabled = false;
  return o;
}

// Ways to choose how many drafts are verified.
std::vector<std::pair<std::string, EngineOptions>> Schedules() {
  std::vector<std::pair<std::string, EngineOptions>> all;
  for (int32_t n = 1; n <= 5; ++n) {
    all.emplace_back("fixed " + std::to_string(n), WithDrafts(VerifyPolicy::kFixed, n));
  }
  all.emplace_back("scheduled", WithDrafts(VerifyPolicy::kScheduled));
  all.emplace_back("threshold", WithDrafts(VerifyPolicy::kThreshold));
  all.back().second.speculation.confidence_threshold = 0.3;
  return all;
}

class Speculation : public EngineTest {
 protected:
  // Submits all at once and returns what came out of each.
  std::vector<std::unique_ptr<TokenCollector>> RunAll(const EngineOptions& options,
                                                      const std::vector<EngineRequest>& requests) {
    Start(options);
    return RunTogether(requests);
  }
  void ExpectSame(const std::vector<EngineRequest>& requests) {
    const auto want = RunAll(WithoutDrafts(), requests);
    EXPECT_EQ(StatisticsWhenIdle(*engine_).draft_tokens, 0);
    for (const auto& [name, options] : Schedules()) {
      const auto got = RunAll(options, requests);
      const EngineStatistics s = StatisticsWhenIdle(*engine_);
      EXPECT_GT(s.draft_tokens, 0) << name;
      int64_t drafted = 0, accepted = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        ExpectSameAnswer(*got[i], *want[i], name + " request " + std::to_string(i));
        EXPECT_EQ(got[i]->Wait().finish, want[i]->Wait().finish);
        drafted += got[i]->Wait().counters.drafted_tokens;
        accepted += got[i]->Wait().counters.draft_accepted_tokens;
      }
      EXPECT_EQ(s.draft_tokens, drafted) << name;
      EXPECT_EQ(s.draft_accepted, accepted) << name;
      accepted_ += accepted;
    }
  }

  int64_t accepted_ = 0;
};

TEST_F(Speculation, K02_GreedyTokensAreThoseWithoutDrafts) {
  std::vector<EngineRequest> mix;
  for (const int32_t length : {1, 2, 5, 63, 64, 65, 127, 128, 200, 300}) {
    EngineRequest r = GreedyRequest(RandomPrompt(length, 900 + static_cast<uint32_t>(length)), 40,
                                    std::to_string(length));
    r.sampling.num_top_logprobs = 2;
    r.sampling.ignore_eos = length % 2 == 0;
    mix.push_back(std::move(r));
  }
  ExpectSame(mix);
  EXPECT_GT(accepted_, 0);
}

TEST_F(Speculation, StrictTokensAreThoseWithoutDrafts) {
  std::vector<EngineRequest> mix;
  for (uint32_t i = 0; i < 8; ++i) {
    EngineRequest r = StrictRequest(RandomPrompt(30 + 25 * static_cast<int32_t>(i), 40 + i), 40, i,
                                    std::to_string(i));
    SamplingParams& p = r.sampling;
    p.temperature = i % 2 == 0 ? 1.0f : 0.3f;
    if (i == 1) p.top_k = 5;
    if (i == 2) p.top_p = 0.7f;
    if (i == 3) p.min_p = 0.05f;
    if (i == 4) p.repetition_penalty = 1.3f;
    if (i == 5) p.frequency_penalty = 0.8f, p.presence_penalty = -0.4f;
    if (i == 6) p.banned_sequences = {{3, 4}, {5}}, p.logit_bias = {{7, 2.0f}, {9, -3.0f}};
    if (i == 7) p.allowed_ids = {3, 4, 5, 6, 7, 8, 9, 10};
    mix.push_back(std::move(r));
  }
  ExpectSame(mix);
  EXPECT_GT(accepted_, 0);
}

// Which drafts are accepted is forced, so every number of them meets every place in the rings, both
// parities and block edges. What follows must not know how the tokens came about.
TEST_F(Speculation, K01_K03_NoNumberOfAcceptedDraftsLeavesATrace) {
  const std::vector<std::vector<int32_t>> patterns = {
      {0}, {1}, {2}, {3}, {4}, {5}, {0, 5, 1, 4, 2, 3}, {5, 0, 0, 2}};
  for (const int32_t length : {1, 60, 126, 127}) {
    std::vector<EngineRequest> forced;
    for (size_t i = 0; i < patterns.size(); ++i) {
      forced.push_back(StrictRequest(RandomPrompt(length, 77), 150, 5, std::to_string(i)));
      forced.back().forced_accepts = patterns[i];
    }
    const auto drafted = RunAll(WithDrafts(VerifyPolicy::kFixed), forced);
    const EngineStatistics s = StatisticsWhenIdle(*engine_);
    std::vector<EngineRequest> plain = forced;
    for (size_t i = 0; i < patterns.size(); ++i) {
      plain[i].forced_ids = drafted[i]->ids();
      const int32_t most = *std::max_element(patterns[i].begin(), patterns[i].end());
      EXPECT_GE(drafted[i]->Wait().counters.draft_accepted_tokens, most > 0 ? 20 : 0);
      EXPECT_EQ(drafted[i]->ids().size(), 150u);
    }
    EXPECT_GT(s.draft_accepted_by_position[4], 0);
    const auto want = RunAll(WithoutDrafts(), plain);
    for (size_t i = 0; i < patterns.size(); ++i) {
      ExpectSameAnswer(*drafted[i], *want[i],
                       "length " + std::to_string(length) + " pattern " + std::to_string(i));
    }
  }
}

TEST_F(Speculation, AStopTokenAmongAcceptedDraftsEndsTheAnswer) {
  EngineRequest r = StrictRequest(RandomPrompt(50, 7), 24, 3);
  const auto full = RunAll(WithoutDrafts(), {r});
  const std::vector<int32_t> ids = full[0]->ids();
  for (size_t end = 1; end < ids.size(); ++end) {
    if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end), ids[end]) !=
        ids.begin() + static_cast<std::ptrdiff_t>(end)) {
      continue;
    }
    EngineRequest stopped = r;
    stopped.sampling.stop_token_ids = {ids[end]};
    stopped.forced_ids = ids;
    stopped.forced_accepts = {5, static_cast<int32_t>(end % 6)};
    const auto got = RunAll(WithDrafts(VerifyPolicy::kFixed), {stopped});
    EXPECT_EQ(got[0]->ids(), std::vector<int32_t>(ids.begin(), ids.begin() + end + 1));
    EXPECT_EQ(got[0]->Wait().finish, FinishReason::kStop);
    EXPECT_EQ(got[0]->Wait().stop_token_id, ids[end]);
    EXPECT_EQ(got[0]->Wait().counters.generated_tokens, static_cast<int64_t>(end) + 1);
  }
}

TEST_F(Speculation, LimitsOfLengthHoldToTheToken) {
  for (int32_t limit = 1; limit <= 8; ++limit) {
    EngineRequest r = StrictRequest(RandomPrompt(20, 8), limit, 3);
    const auto want = RunAll(WithoutDrafts(), {r});
    r.forced_accepts = {5};
    r.forced_ids = want[0]->ids();
    const auto got = RunAll(WithDrafts(VerifyPolicy::kFixed), {r});
    ExpectSameAnswer(*got[0], *want[0], "limit " + std::to_string(limit));
    EXPECT_EQ(got[0]->Wait().finish, FinishReason::kLength);
  }
  // Up to the last position of the context.
  Start(WithoutDrafts(), 40);
  EngineRequest r = StrictRequest(RandomPrompt(20, 8), 1000, 3);
  const auto want = Run(r);
  ASSERT_EQ(want->ids().size(), 20u);
  Start(WithDrafts(VerifyPolicy::kFixed), 40);
  r.forced_accepts = {5};
  r.forced_ids = want->ids();
  ExpectSameAnswer(*Run(r), *want);
}

// A request that wants to know what its positions forbid: penalties and the least number of tokens
// count the drafts before a position.
TEST_F(Speculation, ConstraintsCountThePendingTokens) {
  for (const int32_t least : {0, 3, 9}) {
    EngineRequest r = StrictRequest(RandomPrompt(40, 9), 30, 2);
    r.sampling.logprobs_kind = LogprobsKind::kProcessed;
    r.sampling.ignore_eos = false;
    r.sampling.min_tokens = least;
    r.sampling.logit_bias = {{1, 4.0f}};  // the end token
    r.sampling.frequency_penalty = 1.5f;
    r.sampling.repetition_penalty = 1.2f;
    const auto want = RunAll(WithoutDrafts(), {r});
    ASSERT_GE(static_cast<int32_t>(want[0]->ids().size()), least);
    r.forced_ids = want[0]->ids();
    r.forced_accepts = {5, 2, 3};
    const auto got = RunAll(WithDrafts(VerifyPolicy::kFixed), {r});
    ExpectSameAnswer(*got[0], *want[0], "least " + std::to_string(least));
    EXPECT_EQ(got[0]->Wait().finish, want[0]->Wait().finish);
  }
}

// Little memory, so that sequences with drafts in flight are parked, by both ways of coming back.
TEST_F(Speculation, ParkedSequencesGoOnAsIfTheyHadNotBeen) {
  std::vector<EngineRequest> crowd;
  for (uint32_t i = 0; i < 4; ++i) {
    crowd.push_back(StrictRequest(RandomPrompt(200 + 50 * static_cast<int32_t>(i), 70 + i), 90, i,
                                  std::to_string(i)));
    crowd.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.5f;
  }
  const auto want = RunAll(WithoutDrafts(), crowd);
  for (const int64_t image_bytes : {int64_t{-1}, int64_t{0}}) {
    EngineOptions o = WithDrafts(VerifyPolicy::kFixed);
    o.kv_cache_tokens = 5 * 128;
    o.max_num_seqs = 4;
    o.replay = ReplayMode::kExact;
    o.swa_pool_bytes = image_bytes;
    const auto got = RunAll(o, crowd);
    EXPECT_GT(StatisticsWhenIdle(*engine_).parks, 0);
    for (size_t i = 0; i < crowd.size(); ++i) ExpectSameAnswer(*got[i], *want[i]);
  }
}

TEST_F(Speculation, K02_ForkedChoicesAreThoseOfSingleRuns) {
  std::vector<EngineRequest> choices;
  for (uint32_t i = 0; i < 5; ++i) {
    choices.push_back(StrictRequest(RandomPrompt(150, 33), 60, 11 + i, std::to_string(i)));
  }
  const auto want = RunAll(WithoutDrafts(), choices);
  for (size_t i = 1; i < choices.size(); ++i) choices[i].branch_of = "0";
  const auto got = RunAll(WithDrafts(VerifyPolicy::kFixed), choices);
  for (size_t i = 0; i < choices.size(); ++i) ExpectSameAnswer(*got[i], *want[i]);
}

// The joint law of four tokens drawn from two ids each, against its exact probabilities.
TEST_F(Speculation, RejectionKeepsTheLaw) {
  constexpr int kTokens = 4;
  constexpr int kRuns = 3000;
  EngineRequest base = GreedyRequest(RandomPrompt(6, 12), kTokens);
  base.sampling.temperature = 2.0f;
  base.sampling.allowed_ids = {10, 20};
  base.sampling.ignore_eos = true;
  base.sampling.mode = SamplingMode::kRejection;

  // Exact probabilities: every path is forced once.
  Start(WithoutDrafts());
  std::map<std::vector<int32_t>, double> law = {{{}, 1.0}};
  for (int depth = 0; depth < kTokens; ++depth) {
    std::map<std::vector<int32_t>, double> longer;
    for (const auto& [path, probability] : law) {
      EngineRequest r = base;
      r.sampling.max_tokens = depth + 1;
      r.sampling.num_top_logprobs = 2;
      r.sampling.logprobs_kind = LogprobsKind::kProcessed;
      r.forced_ids = path;
      const auto out = Run(r);
      for (const auto& [id, logprob] : out->logprobs().back().top) {
        std::vector<int32_t> next = path;
        next.push_back(id);
        longer[next] = probability * std::exp(static_cast<double>(logprob));
      }
    }
    law = std::move(longer);
  }
  ASSERT_EQ(law.size(), 1u << kTokens);

  EngineOptions o = WithDrafts(VerifyPolicy::kFixed);
  o.max_num_seqs = 64;
  std::map<std::vector<int32_t>, int> counts;
  std::vector<EngineRequest> requests;
  for (int i = 0; i < kRuns; ++i) {
    requests.push_back(base);
    requests.back().request_id = std::to_string(i);
    requests.back().sampling.seed = 1000 + static_cast<uint64_t>(i);
  }
  o.max_queued_requests = kRuns;
  Start(o);
  for (const auto& out : RunTogether(requests)) ++counts[out->ids()];
  const EngineStatistics s = StatisticsWhenIdle(*engine_);
  EXPECT_GT(s.draft_accepted, 0);
  EXPECT_LT(s.draft_accepted, s.draft_tokens);
  // Rare paths are judged together.
  double chi_square = 0, rare = 0;
  int seen = 0, seen_rare = 0;
  for (const auto& [path, probability] : law) {
    const double expected = probability * kRuns;
    seen += counts[path];
    if (expected < 10) {
      rare += expected;
      seen_rare += counts[path];
      continue;
    }
    chi_square += std::pow(counts[path] - expected, 2) / expected;
  }
  if (rare > 0) chi_square += std::pow(seen_rare - rare, 2) / std::max(rare, 1.0);
  EXPECT_EQ(seen, kRuns) << "a path outside the law";
  // 0.999 quantile of 15 degrees of freedom, one less than there are paths.
  EXPECT_LT(chi_square, 37.7);
}

TEST_F(Speculation, RandomRequestsEndAndAreCancelledWithDraftsInFlight) {
  Start(WithDrafts(VerifyPolicy::kFixed));
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    std::mt19937 rng(seed);
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (int i = 0; i < 30; ++i) {
      const std::string id = std::to_string(seed * 100) + "-" + std::to_string(i);
      EngineRequest r = StrictRequest(RandomPrompt(1 + static_cast<int32_t>(rng() % 150), i),
                                      1 + static_cast<int32_t>(rng() % 40), rng(), id);
      r.sampling.ignore_eos = rng() % 2 == 0;
      r.forced_accepts = {static_cast<int32_t>(rng() % 6), static_cast<int32_t>(rng() % 6)};
      out.push_back(std::make_unique<TokenCollector>());
      ASSERT_TRUE(engine_->Submit(std::move(r), out.back()->Sink()).ok());
      if (rng() % 3 == 0) engine_->Cancel(id);
      if (rng() % 4 == 0) out[rng() % out.size()]->WaitForEvents(1);
    }
    int64_t generated = 0;
    for (const auto& o : out) generated += o->Wait().counters.generated_tokens;
    EXPECT_GT(generated, 0);
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
  }
}

TEST_F(Speculation, K07_OptionsThatCannotWorkAreRefused) {
  EngineOptions o;
  o.max_model_len = 64;
  for (const auto& change : std::vector<std::function<void(SpeculationOptions*)>>{
           [](SpeculationOptions* s) { s->draft_tokens = 6; },
           [](SpeculationOptions* s) { s->draft_tokens = -1; },
           [](SpeculationOptions* s) { s->confidence_threshold = 1.5; },
           [](SpeculationOptions* s) {
             s->confidence_temperatures = {1, 1};
           },
           [](SpeculationOptions* s) {
             s->confidence_temperatures = {1, 1, 0, 1, 1};
           }}) {
    EngineOptions bad = o;
    change(&bad.speculation);
    EXPECT_EQ(Engine::Create(model_->get(), bad, &clock_).status().code(),
              StatusCode::kInvalidRequest);
  }
}

}  // namespace
}  // namespace deepinfer
