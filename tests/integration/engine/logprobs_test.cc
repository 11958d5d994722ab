// Log-probabilities reported by the engine against teacher-forced runs of the model itself.

#include <gtest/gtest.h>

#include <cmath>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

using EngineLogprobs = EngineTest;

constexpr size_t kVocab = 512;

double OracleLogprob(const float* row, int32_t id) {
  double max = -INFINITY, sum = 0;
  for (size_t i = 0; i < kVocab; ++i) max = std::max(max, static_cast<double>(row[i]));
  for (size_t i = 0; i < kVocab; ++i) sum += std::exp(static_cast<double>(row[i]) - max);
  return static_cast<double>(row[id]) - max - std::log(sum);
}

TEST_F(EngineLogprobs, PromptLogprobsEqualATeacherForcedRunForEveryChunkSize) {
  const std::vector<int32_t> prompt = Prompt("f32_L129");
  const int32_t length = static_cast<int32_t>(prompt.size());
  const std::vector<float> logits = TestSequence(model_->get(), prompt).RunChunks({length});
  for (int32_t chunk : {1, 7, 64, 512}) {
    EngineOptions options;
    options.max_num_batched_tokens = chunk;
    Start(options);
    EngineRequest r = GreedyRequest(prompt, 2);
    r.sampling.prompt_logprobs = true;
    r.sampling.num_top_logprobs = 3;
    r.sampling.ignore_eos = true;
    const auto out = Run(std::move(r));
    ASSERT_EQ(out->prompt_logprobs().size(), prompt.size() - 1);
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      const TokenLogprobs& got = out->prompt_logprobs()[i];
      const float* row = logits.data() + i * kVocab;
      EXPECT_NEAR(static_cast<double>(got.logprob), OracleLogprob(row, prompt[i + 1]), 1e-5)
          << "chunk " << chunk << " position " << i + 1;
      ASSERT_EQ(got.top.size(), 3u);
      EXPECT_EQ(got.top[0].first, static_cast<int32_t>(std::max_element(row, row + kVocab) - row));
      EXPECT_GE(got.top[0].second, got.top[1].second);
    }
    EXPECT_NEAR(static_cast<double>(out->logprobs()[0].logprob),
                OracleLogprob(logits.data() + (prompt.size() - 1) * kVocab, out->ids()[0]), 1e-5);
  }
}

TEST_F(EngineLogprobs, PromptLogprobsNeedNoTopList) {
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 1);
  r.sampling.prompt_logprobs = true;
  const auto out = Run(std::move(r));
  EXPECT_EQ(out->prompt_logprobs().size(), 4u);
  EXPECT_TRUE(out->prompt_logprobs()[0].top.empty());
  EXPECT_TRUE(out->logprobs().empty());
}

// Raw numbers: bans, bias, penalties and temperature leave them alone, also for forced ids.
TEST_F(EngineLogprobs, AreThoseOfTheModelWhateverTheSampling) {
  const std::vector<int32_t> golden = GoldenFile("f32_greedy_L63").Ints("generated");
  EngineRequest plain = GreedyRequest(Prompt("f32_greedy_L63"), 8);
  plain.sampling.ignore_eos = true;
  plain.sampling.num_top_logprobs = 4;
  EngineRequest bent = plain;
  bent.forced_ids.assign(golden.begin(), golden.begin() + 8);
  bent.sampling.temperature = 1.7f;
  bent.sampling.repetition_penalty = 1.5f;
  bent.sampling.presence_penalty = 1.0f;
  bent.sampling.banned_ids = {golden[0], golden[1]};
  bent.sampling.logit_bias = {{golden[2], -100.0f}};
  const auto a = Run(plain), b = Run(bent);
  ASSERT_EQ(a->ids(), b->ids());
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(a->logprobs()[i].logprob, b->logprobs()[i].logprob);
    EXPECT_EQ(a->logprobs()[i].top, b->logprobs()[i].top);
    EXPECT_EQ(a->logprobs()[i].top[0].first, golden[i]);
    EXPECT_EQ(a->logprobs()[i].top[0].second, a->logprobs()[i].logprob);
  }
}

}  // namespace
}  // namespace deepinfer
