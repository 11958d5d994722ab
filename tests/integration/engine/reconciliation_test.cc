// The host lags one step behind the device: requests that end inside accepted drafts, are
// cancelled, parked or pass a deadline while their next rows are in flight give the tokens of a
// synchronous run without drafts (architecture.md §8).

#include <gtest/gtest.h>

#include <algorithm>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

// More of them by DEEPINFER_RECONCILIATION_ROUNDS.
int NumRounds() {
  const char* text = std::getenv("DEEPINFER_RECONCILIATION_ROUNDS");
  return text == nullptr ? 6 : std::atoi(text);
}

class Reconciliation : public EngineTest {
 protected:
  // The end token of the tiny model, likely enough that it falls anywhere in an answer.
  static constexpr int32_t kEndId = 1;

  static EngineRequest AnyRequest(std::mt19937& rng, int number) {
    EngineRequest r =
        StrictRequest(RandomPrompt(1 + static_cast<int32_t>(rng() % 280), rng()),
                      1 + static_cast<int32_t>(rng() % 70), rng(), std::to_string(number));
    SamplingParams& p = r.sampling;
    if (rng() % 3 == 0) p.temperature = 0.0f;
    p.ignore_eos = rng() % 4 == 0;
    p.logit_bias = {{kEndId, static_cast<float>(rng() % 4)}};
    if (rng() % 3 == 0) p.stop_token_ids = {3 + static_cast<int32_t>(rng() % 40)};
    if (rng() % 3 == 0) p.min_tokens = static_cast<int32_t>(rng() % 9);
    if (rng() % 4 == 0) p.frequency_penalty = 0.7f;
    r.request_class = kRequestClasses[rng() % 3];
    return r;
  }

  std::vector<std::unique_ptr<TokenCollector>> RunQuietly(const std::vector<EngineRequest>& all) {
    engine_.reset();
    EngineOptions o = OneTokenPerStep();
    o.max_model_len = 512;
    o.prefix_cache = false;
    o.async_scheduling = false;
    engine_ = *Engine::Create(model_->get(), o, &clock_);
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (const EngineRequest& r : all) out.push_back(Run(r));
    return out;
  }

  void StartBusy(std::mt19937& rng) {
    EngineOptions o;
    o.kv_cache_tokens = 128 * (5 + static_cast<int64_t>(rng() % 6));
    o.max_num_seqs = 2 + static_cast<int32_t>(rng() % 6);
    o.max_num_batched_tokens = 8 << (rng() % 6);
    o.replay = ReplayMode::kExact;
    o.min_hit_tokens = 128;
    o.swa_pool_bytes = rng() % 3 == 0 ? 0 : -1;
    o.speculation.verify = std::array{VerifyPolicy::kScheduled, VerifyPolicy::kFixed,
                                      VerifyPolicy::kThreshold}[rng() % 3];
    o.speculation.draft_tokens = 1 + static_cast<int32_t>(rng() % 5);
    Start(o, 512);
  }

  // Drafts are accepted as the dice say, whatever the target model thinks of them; tokens are those
  // of the quiet run.
  static EngineRequest WithDice(EngineRequest r, const std::vector<int32_t>& ids,
                                std::mt19937& rng) {
    if (rng() % 4 == 0) return r;
    r.forced_ids = ids;
    for (int i = 0; i < 5; ++i) r.forced_accepts.push_back(static_cast<int32_t>(rng() % 6));
    return r;
  }
};

TEST_F(Reconciliation, WhateverHappensBetweenStepsTokensAreThoseOfAQuietRun) {
  int64_t num_whole = 0, num_stopped = 0, num_accepted = 0, num_parks = 0, num_broken = 0;
  for (uint32_t seed = 1; seed <= static_cast<uint32_t>(NumRounds()); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    std::vector<EngineRequest> all;
    for (int i = 0; i < 14; ++i) all.push_back(AnyRequest(rng, i));
    const auto want = RunQuietly(all);
    StartBusy(rng);
    std::vector<std::unique_ptr<TokenCollector>> got;
    for (size_t i = 0; i < all.size(); ++i) {
      EngineRequest r = WithDice(all[i], want[i]->ids(), rng);
      if (rng() % 8 == 0) r.deadline_us = clock_.NowUs() + static_cast<int64_t>(rng() % 9'000'000);
      got.push_back(std::make_unique<TokenCollector>());
      ASSERT_TRUE(engine_->Submit(std::move(r), got.back()->Sink()).ok());
      if (rng() % 4 == 0) engine_->Cancel(std::to_string(rng() % got.size()));
      if (rng() % 3 == 0) clock_.Advance(static_cast<int64_t>(rng() % 4'000'000));
      if (rng() % 3 == 0) got[rng() % got.size()]->WaitForEvents(1);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const TokenEvent& last = got[i]->Wait();
      const std::vector<int32_t>&ids = got[i]->ids(), &full = want[i]->ids();
      num_accepted += last.counters.draft_accepted_tokens;
      EXPECT_EQ(last.counters.generated_tokens, static_cast<int64_t>(ids.size()));
      if (last.finish == FinishReason::kCancelled || last.finish == FinishReason::kDeadline) {
        ++num_broken;
        ASSERT_LE(ids.size(), full.size());
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), full.begin())) << "request " << i;
        continue;
      }
      ++num_whole;
      num_stopped += last.finish == FinishReason::kStop;
      ExpectSameAnswer(*got[i], *want[i], "request " + std::to_string(i));
      EXPECT_EQ(last.finish, want[i]->Wait().finish) << "request " << i;
      EXPECT_EQ(last.stop_token_id, want[i]->Wait().stop_token_id) << "request " << i;
    }
    const EngineStatistics s = StatisticsWhenIdle(*engine_);
    num_parks += s.parks;
    ExpectNothingHeld(s);
  }
  // The dice met what they are there for.
  EXPECT_GT(num_whole, 0);
  EXPECT_GT(num_stopped, 0);
  EXPECT_GT(num_accepted, 0);
  if (NumRounds() >= 40) {
    EXPECT_GT(num_parks, 0);
  }
  EXPECT_GT(num_broken, 0);
}

}  // namespace
}  // namespace deepinfer
