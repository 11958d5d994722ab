// What the engine generates: golden ids, independence of chunks, seeds, and every way to stop.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/model_use.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

using Generation = EngineTest;

TEST_F(Generation, GreedyIdsEqualTheGoldenRuns) {
  for (const char* name : {"f32_greedy_L5", "f32_greedy_L63"}) {
    EngineRequest r = GreedyRequest(Prompt(name), 32);
    r.sampling.ignore_eos = true;
    const auto out = Run(std::move(r));
    EXPECT_EQ(out->ids(), GoldenFile(name).Ints("generated")) << name;
    EXPECT_EQ(out->Wait().finish, FinishReason::kLength);
  }
}

TEST_F(Generation, EveryTokenIsItsOwnEventInOrder) {
  Start(OneTokenPerStep());
  const auto out = Run(GreedyRequest(Prompt("f32_greedy_L63"), 10));
  EXPECT_EQ(out->num_events(), 10);
  const TokenEvent& last = out->Wait();
  EXPECT_EQ(last.start_index, 9);
  EXPECT_EQ(last.stop_token_id, -1);
  EXPECT_TRUE(last.status.ok());
  EXPECT_EQ(last.counters.prompt_tokens, 63);
  EXPECT_EQ(last.counters.computed_tokens, 63);
  EXPECT_EQ(last.counters.cached_tokens, 0);
  EXPECT_EQ(last.counters.generated_tokens, 10);
  EXPECT_TRUE(out->logprobs().empty());
}

// The decoder tail of this prompt is compact: 76 of 300 rows run the decoder.
TEST_F(Generation, ChunkSizeChangesNothing) {
  for (float temperature : {0.0f, 1.0f}) {
    std::unique_ptr<TokenCollector> first;
    for (int32_t chunk : {1, 7, 64, 512}) {
      EngineOptions options;
      options.max_num_batched_tokens = chunk;
      Start(options);
      EngineRequest r = GreedyRequest(Prompt("f32_L300"), 12);
      r.sampling.temperature = temperature;
      r.sampling.ignore_eos = true;
      r.sampling.seed = 3;
      r.sampling.has_seed = true;
      r.sampling.num_top_logprobs = 5;
      auto out = Run(std::move(r));
      ASSERT_EQ(out->ids().size(), 12u);
      ASSERT_EQ(out->logprobs().size(), 12u);
      EXPECT_EQ(out->Wait().counters.computed_tokens, 300);
      if (first == nullptr) {
        first = std::move(out);
        continue;
      }
      EXPECT_EQ(out->ids(), first->ids()) << chunk;
      for (size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(out->logprobs()[i].logprob, first->logprobs()[i].logprob) << chunk;
        EXPECT_EQ(out->logprobs()[i].top, first->logprobs()[i].top) << chunk;
      }
    }
  }
}

TEST_F(Generation, TheCompactTailIsNotTheFullDecoder) {
  const auto logprobs = [&](DecoderTail tail) {
    EngineOptions options;
    options.decoder_tail = tail;
    Start(options);
    EngineRequest r = GreedyRequest(Prompt("f32_L300"), 1);
    r.sampling.num_top_logprobs = 20;
    return Run(std::move(r))->logprobs()[0].top;
  };
  EXPECT_NE(logprobs(DecoderTail::kCompact), logprobs(DecoderTail::kFull));
}

TEST_F(Generation, ASeedDecidesTheText) {
  const auto run = [&](SamplingMode mode, uint64_t seed, bool has_seed) {
    EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 24);
    r.sampling.temperature = 1.0f;
    r.sampling.ignore_eos = true;
    r.sampling.seed = seed;
    r.sampling.has_seed = has_seed;
    r.sampling.mode = mode;
    return Run(std::move(r))->ids();
  };
  const auto strict = run(SamplingMode::kStrict, 1, true);
  const auto rejection = run(SamplingMode::kRejection, 1, true);
  EXPECT_EQ(run(SamplingMode::kStrict, 1, true), strict);
  EXPECT_EQ(run(SamplingMode::kRejection, 1, true), rejection);
  EXPECT_EQ(run(SamplingMode::kAuto, 1, true), strict);
  EXPECT_EQ(run(SamplingMode::kAuto, 1, false), rejection);
  EXPECT_NE(strict, rejection);
  EXPECT_NE(run(SamplingMode::kStrict, 2, true), strict);
  EXPECT_NE(run(SamplingMode::kRejection, 2, true), rejection);
}

TEST_F(Generation, AStopIdEndsAtItsFirstAppearance) {
  const std::vector<int32_t> golden = GoldenFile("f32_greedy_L63").Ints("generated");
  for (size_t at : {size_t{0}, size_t{4}, golden.size() - 1}) {
    const int32_t stop = golden[at];
    const auto first =
        static_cast<size_t>(std::find(golden.begin(), golden.end(), stop) - golden.begin());
    EngineRequest r = GreedyRequest(Prompt("f32_greedy_L63"), 32);
    r.sampling.ignore_eos = true;
    r.sampling.stop_token_ids = {stop};
    const auto out = Run(std::move(r));
    EXPECT_EQ(out->ids(), std::vector<int32_t>(golden.begin(),
                                               golden.begin() + static_cast<int64_t>(first) + 1));
    EXPECT_EQ(out->Wait().finish, FinishReason::kStop);
    EXPECT_EQ(out->Wait().stop_token_id, stop);
  }
}

TEST_F(Generation, TheEndTokenStopsUnlessIgnored) {
  const int32_t end = (*model_)->config().eos_token_id;
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 6);
  r.forced_ids = {7, 8, end, 9};
  const auto stopped = Run(r);
  EXPECT_EQ(stopped->ids(), (std::vector<int32_t>{7, 8, end}));
  EXPECT_EQ(stopped->Wait().finish, FinishReason::kStop);
  EXPECT_EQ(stopped->Wait().stop_token_id, end);
  EXPECT_EQ(stopped->Wait().counters.generated_tokens, 3);

  r.sampling.ignore_eos = true;
  const auto ignored = Run(r);
  ASSERT_EQ(ignored->ids().size(), 6u);
  EXPECT_EQ(ignored->ids()[3], 9);
  EXPECT_EQ(ignored->Wait().finish, FinishReason::kLength);
}

TEST_F(Generation, MinTokensHoldsTheEndTokenBack) {
  const int32_t end = (*model_)->config().eos_token_id;
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 20);
  r.sampling.logit_bias = {{end, 100.0f}};
  EXPECT_EQ(Run(r)->ids(), std::vector<int32_t>{end});
  r.sampling.min_tokens = 4;
  const auto out = Run(r);
  ASSERT_EQ(out->ids().size(), 5u);
  EXPECT_EQ(std::count(out->ids().begin(), out->ids().end(), end), 1);
  EXPECT_EQ(out->ids().back(), end);
  EXPECT_EQ(out->Wait().finish, FinishReason::kStop);
}

TEST_F(Generation, MaxTokensAndAFullContextEndWithLength) {
  EXPECT_EQ(Run(GreedyRequest(Prompt("f32_greedy_L63"), 1))->ids().size(), 1u);
  EngineOptions options;
  options.max_model_len = 70;
  Start(options);
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L63"), 1000);
  r.sampling.ignore_eos = true;
  const auto out = Run(r);
  EXPECT_EQ(out->ids().size(), 7u);
  EXPECT_EQ(out->Wait().finish, FinishReason::kLength);
  const std::vector<int32_t> golden = GoldenFile("f32_greedy_L63").Ints("generated");
  EXPECT_TRUE(std::equal(out->ids().begin(), out->ids().end(), golden.begin()));
}

TEST_F(Generation, ForcedIdsComeFirstThenSampling) {
  const std::vector<int32_t> golden = GoldenFile("f32_greedy_L63").Ints("generated");
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L63"), 10);
  r.sampling.ignore_eos = true;
  // Forcing the greedy ids leaves the rest greedy; forcing another one changes it.
  r.forced_ids.assign(golden.begin(), golden.begin() + 6);
  EXPECT_EQ(Run(r)->ids(), std::vector<int32_t>(golden.begin(), golden.begin() + 10));
  r.forced_ids[5] = (golden[5] + 17) % 500;
  const auto out = Run(r);
  ASSERT_EQ(out->ids().size(), 10u);
  EXPECT_EQ(out->ids()[5], r.forced_ids[5]);
  EXPECT_NE(std::vector<int32_t>(out->ids().begin() + 6, out->ids().end()),
            std::vector<int32_t>(golden.begin() + 6, golden.begin() + 10));
}

TEST_F(Generation, RowsAreCountedWithThePositionsUpToTheirs) {
  Start(OneTokenPerStep());
  const EngineStatistics before = engine_->Statistics();
  EngineRequest r = GreedyRequest(RandomPrompt(5, 1), 3);
  r.sampling.ignore_eos = true;
  Run(r);
  const EngineStatistics after = StatisticsWhenIdle(*engine_);
  // Five rows of the prompt, then those of the first two tokens.
  EXPECT_EQ(after.attended_tokens - before.attended_tokens, 1 + 2 + 3 + 4 + 5 + 6 + 7);
  EXPECT_GT(after.attention_kiloflops, before.attention_kiloflops);
  EXPECT_GT(after.kiloflops - before.kiloflops,
            after.attention_kiloflops - before.attention_kiloflops);
  EXPECT_GE(after.step_max_context, 6);
  EXPECT_EQ(after.undelivered_events, 0);
}

TEST_F(Generation, TheLoadOfExpertsIsKnownAfterAWindowOfSteps) {
  Start(OneTokenPerStep());
  EXPECT_EQ(engine_->Statistics().expert_load_milli, 0);
  EngineRequest r = GreedyRequest(RandomPrompt(5, 1), ModelUse::kWindowSteps);
  r.sampling.ignore_eos = true;
  Run(r);
  const EngineStatistics after = StatisticsWhenIdle(*engine_);
  ASSERT_GE(after.steps, ModelUse::kWindowSteps);
  // Every row takes topk different experts, so that one has all rows at most.
  const ModelConfig& config = model_->get()->config();
  EXPECT_GT(after.expert_load_milli, 1000);
  EXPECT_LE(after.expert_load_milli, 1000 * config.num_experts / config.experts_per_token);
}

TEST_F(Generation, ARequestDoesNotFeelItsPredecessor) {
  const std::vector<int32_t> golden = GoldenFile("f32_greedy_L5").Ints("generated");
  EngineRequest other = GreedyRequest(Prompt("f32_L300"), 20);
  other.sampling.ignore_eos = true;
  Run(other);
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 32);
  r.sampling.ignore_eos = true;
  EXPECT_EQ(Run(r)->ids(), golden);
}

}  // namespace
}  // namespace deepinfer
