// An engine on the tiny golden model with a clock that stands still; every test ends with a check
// that nothing is still held. Built twice, for asynchronous and synchronous steps.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"
#include "support/token_collector.h"
#include "support/wait_until.h"

namespace deepinfer {

inline bool UseAsyncScheduling() { return std::getenv("DEEPINFER_ENGINE_SYNC") == nullptr; }

inline EngineRequest GreedyRequest(std::vector<int32_t> prompt, int32_t max_tokens,
                                   std::string id = std::string("request")) {
  EngineRequest r;
  r.request_id = std::move(id);
  r.prompt_ids = std::move(prompt);
  r.sampling.temperature = 0.0f;
  r.sampling.max_tokens = max_tokens;
  return r;
}

// For tests that look at single events and steps.
inline EngineOptions OneTokenPerStep() {
  EngineOptions o;
  o.speculation.enabled = false;
  return o;
}

// Ids below the special ones, from a fixed seed.
inline std::vector<int32_t> RandomPrompt(int32_t length, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + rng() % 500);
  return tokens;
}

inline void ExpectNothingHeld(const EngineStatistics& s) {
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.pending, 0);
  EXPECT_EQ(s.parked, 0);
  EXPECT_EQ(s.kv_tokens, 0);
  EXPECT_EQ(s.blocks_acquired, s.blocks_released);
  EXPECT_EQ(s.slots_acquired, s.slots_released);
  EXPECT_EQ(s.waiting_prompt_tokens, 0);
  EXPECT_EQ(s.remaining_output_tokens, 0);
}

// The memory of an ended request may be held until the step in flight is over.
inline EngineStatistics StatisticsWhenIdle(const Engine& engine) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  EngineStatistics s = engine.Statistics();
  while (s.slots_acquired != s.slots_released && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    s = engine.Statistics();
  }
  return s;
}

// The tiny checkpoint with room for more positions than the 512 it declares, so that prompts reach
// over several windows and blocks.
class LongTinyCheckpoint {
 public:
  LongTinyCheckpoint() {
    const std::filesystem::path from = GoldenPath("tiny_fp8fp4");
    for (const auto& file : std::filesystem::directory_iterator(from)) {
      const std::string name = file.path().filename();
      if (name != "config.json") {
        std::filesystem::create_symlink(std::filesystem::absolute(file.path()), dir_.File(name));
      }
    }
    std::ifstream in(from / "config.json");
    std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::string declared = "\"max_position_embeddings\": 512";
    const size_t at = config.find(declared);
    if (at == std::string::npos) ADD_FAILURE() << "the tiny configuration has changed";
    config.replace(at, declared.size(), "\"max_position_embeddings\": 4096");
    dir_.Write("config.json", config);
  }
  std::string path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (model_ != nullptr) return;
    const LongTinyCheckpoint checkpoint;
    model_ = std::make_unique<TinyModel>(
        TinyModelOptions{.checkpoint = checkpoint.path(), .threads = 1});
  }

  void SetUp() override { Start({}); }
  void TearDown() override {
    clock_.OnRead({});
    if (engine_ != nullptr) ExpectNothingHeld(StatisticsWhenIdle(*engine_));
  }

  // Replaces the engine.
  void Start(const EngineOptions& options, int32_t max_model_len = 512) {
    engine_.reset();
    EngineOptions o = options;
    o.max_model_len = std::min(o.max_model_len, max_model_len);
    o.async_scheduling = UseAsyncScheduling();
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

  // Submits all requests while the engine is held, so that they start together, and waits.
  std::vector<std::unique_ptr<TokenCollector>> RunTogether(std::vector<EngineRequest> requests) {
    std::vector<std::unique_ptr<TokenCollector>> out;
    TokenCollector holder;
    Latch latch;
    EngineRequest hold = GreedyRequest({5, 6, 7}, 1, std::string("holder"));
    EXPECT_TRUE(
        engine_->Submit(std::move(hold), holder.Sink([&](const TokenEvent&) { latch.Block(); }))
            .ok());
    latch.WaitUntilReached();
    for (EngineRequest& r : requests) {
      out.push_back(std::make_unique<TokenCollector>());
      const Status status = engine_->Submit(std::move(r), out.back()->Sink());
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    latch.Release();
    for (const auto& o : out) o->Wait();
    return out;
  }

  // Holds the engine inside the sink of a running request until Release.
  class Latch {
   public:
    void Block() {
      std::unique_lock lock(mutex_);
      reached_ = true;
      changed_.notify_all();
      WaitUntil(changed_, lock, "the release of the engine", [this] { return released_; });
    }
    bool released() {
      const std::lock_guard lock(mutex_);
      return released_;
    }
    void WaitUntilReached() {
      std::unique_lock lock(mutex_);
      WaitUntil(changed_, lock, "a running request", [this] { return reached_; });
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

// Answers must be equal to the last bit: ids and log-probabilities.
inline void ExpectSameAnswer(const TokenCollector& got, const TokenCollector& want,
                             const std::string& where = std::string()) {
  EXPECT_EQ(got.ids(), want.ids()) << where;
  ASSERT_EQ(got.logprobs().size(), want.logprobs().size()) << where;
  for (size_t i = 0; i < want.logprobs().size(); ++i) {
    ASSERT_EQ(got.logprobs()[i].logprob, want.logprobs()[i].logprob) << where << " token " << i;
    ASSERT_EQ(got.logprobs()[i].top, want.logprobs()[i].top) << where << " token " << i;
  }
}

// A sampled request whose answer depends on every bit of its logits: strict draws, top list.
inline EngineRequest StrictRequest(std::vector<int32_t> prompt, int32_t max_tokens, uint64_t seed,
                                   std::string id = std::string("request")) {
  EngineRequest r = GreedyRequest(std::move(prompt), max_tokens, std::move(id));
  r.sampling.temperature = 1.0f;
  r.sampling.seed = seed;
  r.sampling.has_seed = true;
  r.sampling.ignore_eos = true;
  r.sampling.num_top_logprobs = 3;
  return r;
}

}  // namespace deepinfer
