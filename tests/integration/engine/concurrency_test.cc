// Many threads submit and cancel at once; every request ends once and answers do not mix.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "cluster/gateway.h"
#include "cluster/in_process_worker.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

using Concurrency = EngineTest;

constexpr int kThreads = 8;
constexpr int kRequests = 40;

EngineRequest SmallRequest(int32_t kind, std::string id) {
  EngineRequest r =
      GreedyRequest({3 + kind, 40 + 7 * kind, 200 - kind}, 2 + kind % 3, std::move(id));
  r.sampling.ignore_eos = true;
  return r;
}

TEST_F(Concurrency, EightThreadsSubmitAndCancelThroughTheGateway) {
  constexpr int32_t kKinds = 5;
  std::vector<std::vector<int32_t>> answers;
  for (int32_t kind = 0; kind < kKinds; ++kind) {
    answers.push_back(Run(SmallRequest(kind, std::string("alone")))->ids());
  }
  Engine* engine = engine_.get();
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(
      std::make_unique<InProcessWorker>(std::string("tiny"), model_->get(), std::move(engine_)));
  Gateway gateway({}, std::move(workers), &clock_);
  std::atomic<int> cancelled{0}, finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      std::vector<std::pair<int32_t, std::unique_ptr<TokenCollector>>> mine;
      for (int i = 0; i < kRequests; ++i) {
        const auto kind = static_cast<int32_t>(rng() % kKinds);
        const std::string id = std::to_string(t) + "/" + std::to_string(i);
        mine.emplace_back(kind, std::make_unique<TokenCollector>());
        const Status status = gateway.Submit(SmallRequest(kind, id), mine.back().second->Sink());
        EXPECT_TRUE(status.ok()) << status.ToString();
        if (rng() % 3 == 0) gateway.Cancel(id);
        if (rng() % 3 == 0) gateway.Cancel(std::to_string(rng() % kThreads) + "/0");
        EXPECT_GE(gateway.Load().kv_capacity_tokens, 1);
      }
      for (auto& [kind, out] : mine) {
        const TokenEvent& last = out->Wait();
        const auto& want = answers[static_cast<size_t>(kind)];
        if (last.finish == FinishReason::kCancelled) {
          ++cancelled;
          EXPECT_LT(out->ids().size(), want.size());
          EXPECT_TRUE(std::equal(out->ids().begin(), out->ids().end(), want.begin()));
        } else {
          ++finished;
          EXPECT_EQ(last.finish, FinishReason::kLength);
          EXPECT_EQ(out->ids(), want);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cancelled + finished, kThreads * kRequests);
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(finished, 0);
  gateway.Drain(0);
  ExpectNothingHeld(StatisticsWhenIdle(*engine));
  TokenCollector refused;
  EXPECT_EQ(gateway.Submit(SmallRequest(0, std::string("late")), refused.Sink()).code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace deepinfer
