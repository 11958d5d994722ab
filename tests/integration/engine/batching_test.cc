// One request, one answer: bits do not depend on the batch, the chunks or the threads
// (numerics.md §1).

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Batching : public EngineTest {
 protected:
  // Different lengths, greedy and strict, prompts over several blocks and windows.
  static std::vector<EngineRequest> Mix() {
    std::vector<EngineRequest> mix;
    const int32_t lengths[] = {1, 5, 63, 64, 127, 128, 129, 200, 300};
    for (size_t i = 0; i < std::size(lengths); ++i) {
      const std::string id = "mix" + std::to_string(i);
      EngineRequest r = StrictRequest(RandomPrompt(lengths[i], 10 + static_cast<uint32_t>(i)),
                                      6 + static_cast<int32_t>(i), 77 + i, id);
      if (i % 2 == 0) r.sampling.temperature = 0.0f;
      mix.push_back(std::move(r));
    }
    return mix;
  }

  std::vector<std::unique_ptr<TokenCollector>> RunAlone() {
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (EngineRequest& r : Mix()) out.push_back(Run(std::move(r)));
    return out;
  }

  static EngineOptions Options(int32_t rows) {
    EngineOptions o;
    o.max_num_batched_tokens = rows;
    o.prefix_cache = false;
    return o;
  }
};

TEST_F(Batching, AnswersDependNeitherOnBatchMatesNorOnChunks) {
  Start(Options(512));
  const auto want = RunAlone();
  for (int32_t rows : {512, 128, 64, 7, 2, 1}) {
    Start(Options(rows));
    const auto together = RunTogether(Mix());
    for (size_t i = 0; i < want.size(); ++i) {
      ExpectSameAnswer(*together[i], *want[i],
                       "rows " + std::to_string(rows) + " request " + std::to_string(i));
    }
    const EngineStatistics s = engine_->Statistics();
    EXPECT_EQ(s.generated_tokens, 1 + (6 + 14) * 9 / 2);
    EXPECT_LE(s.prefill_rows + s.decode_rows, s.steps * rows);
  }
}

TEST_F(Batching, AnswersDoNotDependOnThreads) {
  Start(Options(64));
  const auto want = RunAlone();
  for (int threads : {2, 3, 4}) {
    TinyModel other({.threads = threads});
    EngineOptions o = Options(64);
    o.max_model_len = 512;
    o.async_scheduling = UseAsyncScheduling();
    engine_ = *Engine::Create(other.get(), o, &clock_);
    const auto together = RunTogether(Mix());
    for (size_t i = 0; i < want.size(); ++i) {
      ExpectSameAnswer(*together[i], *want[i], "threads " + std::to_string(threads));
    }
    engine_.reset();
  }
}

TEST_F(Batching, StepsMixDecodeRowsAndPromptChunks) {
  Start(Options(32));
  std::vector<EngineRequest> two;
  two.push_back(StrictRequest(RandomPrompt(4, 1), 40, 1, std::string("short")));
  two.push_back(StrictRequest(RandomPrompt(400, 2), 2, 2, std::string("long")));
  RunTogether(std::move(two));
  const EngineStatistics s = engine_->Statistics();
  int64_t mixed = 0;
  for (int64_t n : s.step_seconds[static_cast<size_t>(StepKind::kMixed)].counts()) mixed += n;
  EXPECT_GE(mixed, 400 / 32 - 2);
  EXPECT_LT(s.steps, 60) << "one after the other would take more steps";
}

TEST_F(Batching, MoreRequestsThanSequencesRunInTurns) {
  EngineOptions o = Options(64);
  o.max_num_seqs = 2;
  Start(o);
  std::vector<EngineRequest> many;
  for (uint64_t i = 0; i < 9; ++i) {
    many.push_back(StrictRequest(RandomPrompt(10, 3), 5, i, std::to_string(i)));
  }
  for (const auto& out : RunTogether(std::move(many))) {
    EXPECT_EQ(out->ids().size(), 5u);
    EXPECT_EQ(out->Wait().finish, FinishReason::kLength);
  }
}

TEST_F(Batching, ClassesGoBeforeArrival) {
  EngineOptions o = Options(64);
  o.max_num_seqs = 1;
  Start(o);
  std::vector<std::string> order;
  std::array<int32_t, 3> queued{};  // by class, while the first of them runs
  TokenCollector running, out[3];
  Latch latch;
  ASSERT_TRUE(engine_
                  ->Submit(GreedyRequest({5, 6}, 1, std::string("running")),
                           running.Sink([&](const TokenEvent&) { latch.Block(); }))
                  .ok());
  latch.WaitUntilReached();
  const RequestClass classes[] = {RequestClass::kBatch, RequestClass::kAgent,
                                  RequestClass::kInteractive};
  for (int i = 0; i < 3; ++i) {
    EngineRequest r = GreedyRequest({5, 6}, 1, std::to_string(i));
    r.request_class = classes[i];
    ASSERT_TRUE(engine_
                    ->Submit(std::move(r), out[i].Sink([&, i](const TokenEvent&) {
                      if (order.empty()) queued = engine_->Statistics().queued_by_class;
                      order.push_back(std::to_string(i));
                    }))
                    .ok());
  }
  latch.Release();
  engine_->Drain(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(order, (std::vector<std::string>{"2", "1", "0"}));
  EXPECT_EQ(queued, (std::array<int32_t, 3>{0, 1, 1}));
}

}  // namespace
}  // namespace deepinfer
