// An engine on the tiny golden model with a clock that stands still; every test ends with a check
// that nothing is still held.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "support/fake_clock.h"
#include "support/token_collector.h"

namespace deepinfer {

inline EngineRequest GreedyRequest(std::vector<int32_t> prompt, int32_t max_tokens,
                                   std::string id = std::string("request")) {
  EngineRequest r;
  r.request_id = std::move(id);
  r.prompt_ids = std::move(prompt);
  r.sampling.temperature = 0.0f;
  r.sampling.max_tokens = max_tokens;
  return r;
}

inline void ExpectNothingHeld(const EngineStats& s) {
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.kv_tokens, 0);
  EXPECT_EQ(s.blocks_acquired, s.blocks_released);
  EXPECT_EQ(s.slots_acquired, s.slots_released);
}

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (model_ == nullptr) model_ = std::make_unique<TinyModel>(TinyModelOptions{.threads = 1});
  }

  void SetUp() override { Start({}); }
  void TearDown() override {
    if (engine_ != nullptr) ExpectNothingHeld(engine_->Stats());
  }

  static EngineOptions SmallOptions() {
    EngineOptions o;
    o.max_model_len = 512;
    return o;
  }
  // Replaces the engine.
  void Start(const EngineOptions& options) {
    engine_.reset();
    EngineOptions o = options;
    o.max_model_len = std::min(o.max_model_len, 512);
    Result<std::unique_ptr<Engine>> engine = Engine::Create(model_->get(), o, &clock_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  // Runs one request to its end and returns what came out.
  std::unique_ptr<TokenCollector> Run(EngineRequest request) {
    auto out = std::make_unique<TokenCollector>();
    const Status status = engine_->Submit(std::move(request), out->Sink());
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (status.ok()) out->Wait();
    return out;
  }

  // Holds the engine inside the sink of a running request until Release.
  class Latch {
   public:
    void Block() {
      std::unique_lock lock(mutex_);
      reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    }
    void WaitUntilReached() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return reached_; });
    }
    void Release() {
      const std::lock_guard lock(mutex_);
      released_ = true;
      changed_.notify_all();
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool reached_ = false, released_ = false;
  };

  static std::vector<int32_t> Prompt(const std::string& golden) {
    const GoldenFile file(golden);
    return file.Ints(file.Has("prompt") ? "prompt" : "tokens");
  }

  static inline std::unique_ptr<TinyModel> model_;
  FakeClock clock_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer
