// A NaN in one row of the embedding: requests with that token fail, the others never notice.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "integration/engine/engine_fixture.h"
#include "support/checkpoint_copy.h"
#include "tensor/codecs.h"

namespace deepinfer {
namespace {

constexpr int32_t kDamagedToken = 78;

class DamagedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointCopy copy(GoldenPath("tiny_fp8fp4"));
    CheckpointCopy::Tensor& embed = copy.At("embed.weight");
    const uint16_t nan = FloatToBf16(NAN);
    std::memcpy(embed.bytes.data() + (kDamagedToken * embed.shape[1] + 5) * 2, &nan, sizeof nan);
    copy.Write(dir_);
    TinyModelOptions options;
    options.checkpoint = dir_.path();
    options.threads = 1;
    model_ = std::make_unique<TinyModel>(options);
    EngineOptions engine_options;
    engine_options.max_model_len = 256;
    engine_options.async_scheduling = UseAsyncScheduling();
    engine_options.max_num_batched_tokens = 16;
    Result<std::unique_ptr<Engine>> engine = Engine::Create(model_->get(), engine_options, &clock_);
    ASSERT_TRUE(engine.ok());
    engine_ = *std::move(engine);
  }
  void TearDown() override { ExpectNothingHeld(StatisticsWhenIdle(*engine_)); }

  const TokenEvent& Run(EngineRequest request, TokenCollector* out) {
    EXPECT_TRUE(engine_->Submit(std::move(request), out->Sink()).ok());
    return out->Wait();
  }

  TempDir dir_;
  std::unique_ptr<TinyModel> model_;
  FakeClock clock_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(DamagedWeights, FailOnlyTheRequestThatMeetsThem) {
  const GoldenFile golden("f32_greedy_L63");
  const std::vector<int32_t> prompt = golden.Ints("prompt");
  ASSERT_EQ(std::count(prompt.begin(), prompt.end(), kDamagedToken), 0);
  const auto healthy = [&] {
    EngineRequest r = GreedyRequest(prompt, 16);
    r.sampling.ignore_eos = true;
    r.sampling.banned_ids = {kDamagedToken};
    return r;
  };
  TokenCollector before;
  EXPECT_EQ(Run(healthy(), &before).finish, FinishReason::kLength);

  // In the middle of a prompt of several chunks.
  EngineRequest in_prompt = healthy();
  in_prompt.prompt_ids[40] = kDamagedToken;
  TokenCollector first;
  const TokenEvent& failed = Run(in_prompt, &first);
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_EQ(failed.status.code(), StatusCode::kDataCorruption) << failed.status.ToString();
  EXPECT_TRUE(first.ids().empty());
  EXPECT_EQ(failed.counters.computed_tokens, 32);

  // While decoding: what was sent before stays sent.
  EngineRequest in_output = healthy();
  in_output.forced_ids = {3, 4, kDamagedToken};
  TokenCollector second;
  EXPECT_EQ(Run(in_output, &second).status.code(), StatusCode::kDataCorruption);
  EXPECT_EQ(second.ids(), in_output.forced_ids);

  // A draft that is met only because it was verified takes nothing away from the tokens before it.
  in_output.forced_accepts = {5};
  TokenCollector drafted;
  EXPECT_EQ(Run(in_output, &drafted).status.code(), StatusCode::kDataCorruption);
  EXPECT_EQ(drafted.ids(), in_output.forced_ids);

  // The pages the failed requests filled with NaN are used again.
  TokenCollector after;
  EXPECT_EQ(Run(healthy(), &after).finish, FinishReason::kLength);
  EXPECT_EQ(after.ids(), before.ids());
}

}  // namespace
}  // namespace deepinfer
