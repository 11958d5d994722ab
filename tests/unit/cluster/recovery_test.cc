// What the gateway does when workers are lost: the client sees one stream, whatever happens behind.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "cluster/gateway.h"
#include "support/fake_clock.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

// A worker whose events the test sends.
class ScriptedWorker final : public Worker {
 public:
  explicit ScriptedWorker(WorkerRole role) {
    info_.role = role;
    info_.endpoint = std::string(WorkerRoleName(role));
  }

  WorkerInfo info() const override { return info_; }
  Status Submit(EngineRequest request, TokenSink sink) override {
    return Take("run", std::move(request), std::move(sink));
  }
  Status SubmitDecode(EngineRequest request, TokenSink sink) override {
    return Take("decode", std::move(request), std::move(sink));
  }
  Status SubmitPrefill(EngineRequest request, const std::string& to, TokenSink sink) override {
    return Take("prefill for " + to, std::move(request), std::move(sink));
  }
  void Cancel(std::string_view id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.emplace_back(id);
  }
  LoadReport Load() const override {
    if (when_asked_for_load) when_asked_for_load();
    const std::lock_guard lock(mutex_);
    return load_;
  }
  bool healthy() const override { return Load().ready; }
  EngineStatistics Statistics() const override { return {}; }
  void Drain(int64_t) override {}

  std::function<void()> when_asked_for_load;  // the gateway asks while it places a request

  void SetReady(bool ready) {
    const std::lock_guard lock(mutex_);
    load_.ready = ready;
  }
  void SetRunning(int32_t running) {
    const std::lock_guard lock(mutex_);
    load_.running = running;
  }
  size_t num_taken() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  EngineRequest request(size_t i) const {
    const std::lock_guard lock(mutex_);
    return requests_.at(i);
  }
  std::vector<std::string> kinds() const {
    const std::lock_guard lock(mutex_);
    return kinds_;
  }
  std::vector<std::string> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  // Event of the i-th request it took.
  void Send(size_t i, int32_t start, std::vector<int32_t> ids,
            FinishReason finish = FinishReason::kNone, Status status = OkStatus()) {
    TokenEvent event;
    event.start_index = start;
    event.ids = std::move(ids);
    event.finish = finish;
    event.status = std::move(status);
    event.counters.prompt_tokens = 3;
    event.counters.generated_tokens = start + static_cast<int64_t>(event.ids.size());
    TokenSink sink;
    {
      const std::lock_guard lock(mutex_);
      sink = sinks_.at(i);
    }
    sink(std::move(event));
  }
  void Lose(size_t i) { Send(i, 0, {}, FinishReason::kError, Unavailable("lost")); }

 private:
  Status Take(std::string kind, EngineRequest request, TokenSink sink) {
    const std::lock_guard lock(mutex_);
    kinds_.push_back(std::move(kind));
    requests_.push_back(std::move(request));
    sinks_.push_back(std::move(sink));
    return OkStatus();
  }

  WorkerInfo info_;
  mutable std::mutex mutex_;
  LoadReport load_;
  std::vector<std::string> kinds_, cancelled_;
  std::vector<EngineRequest> requests_;
  std::vector<TokenSink> sinks_;
};

bool Eventually(const std::function<bool()>& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!what()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class Recovery : public ::testing::Test {
 protected:
  void Start(std::initializer_list<WorkerRole> roles, GatewayOptions options = {}) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (const WorkerRole role : roles) {
      auto worker = std::make_unique<ScriptedWorker>(role);
      workers_.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    gateway_ = std::make_unique<Gateway>(options, std::move(workers), &clock_);
  }
  void Submit() {
    EngineRequest request;
    request.request_id = "r";
    request.prompt_ids = {5, 6, 7};
    ASSERT_TRUE(gateway_->Submit(std::move(request), out_.Sink()).ok());
  }
  bool WaitTaken(size_t worker, size_t count) {
    return Eventually([&] { return workers_[worker]->num_taken() == count; });
  }

  FakeClock clock_{0};
  TokenCollector out_;
  std::vector<ScriptedWorker*> workers_;
  std::unique_ptr<Gateway> gateway_;
};

constexpr WorkerRole kAll = WorkerRole::kAll, kPrefill = WorkerRole::kPrefill,
                     kDecode = WorkerRole::kDecode;

TEST_F(Recovery, ALostWorkerIsReplacedAndTheClientSeesOneStream) {
  Start({kAll, kAll});
  Submit();
  workers_[0]->Send(0, 0, {10});
  workers_[0]->Send(0, 1, {11, 12});
  workers_[0]->SetReady(false);
  workers_[0]->Lose(0);
  ASSERT_TRUE(WaitTaken(1, 1));
  const EngineRequest again = workers_[1]->request(0);
  EXPECT_EQ(again.attempt, 2u);
  ASSERT_TRUE(again.resume.has_value());
  EXPECT_EQ(again.resume->ids, (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(again.resume->counters.generated_tokens, 3);
  workers_[0]->Send(0, 3, {99});  // a late word of the lost one
  workers_[1]->Send(0, 2, {12, 13});
  workers_[1]->Send(0, 4, {14}, FinishReason::kLength);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(gateway_->counters().migrated, 1);
}

TEST_F(Recovery, WithoutAnyWorkerTheRequestWaitsForOne) {
  Start({kAll});
  Submit();
  workers_[0]->SetReady(false);
  workers_[0]->Lose(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(workers_[0]->num_taken(), 1u);
  workers_[0]->SetReady(true);
  ASSERT_TRUE(WaitTaken(0, 2));
  EXPECT_FALSE(workers_[0]->request(1).resume.has_value()) << "nothing was produced yet";
  workers_[0]->Send(1, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(Recovery, ARequestThatWaitsForAWorkerCanBeCancelled) {
  Start({kAll});
  Submit();
  workers_[0]->Send(0, 0, {10});
  workers_[0]->SetReady(false);
  workers_[0]->Lose(0);
  gateway_->Cancel("r");
  EXPECT_EQ(out_.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(out_.Wait().counters.generated_tokens, 1);
}

TEST_F(Recovery, ARequestThatIsBeingPlacedCanBeCancelled) {
  Start({kAll});
  workers_[0]->when_asked_for_load = [this] { gateway_->Cancel("r"); };
  Submit();
  ASSERT_TRUE(Eventually([this] { return out_.done(); }));
  EXPECT_EQ(out_.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(workers_[0]->num_taken(), 0u);
  workers_[0]->when_asked_for_load = nullptr;
}

TEST_F(Recovery, ItFailsAfterTooManyAttempts) {
  GatewayOptions options;
  options.max_attempts = 3;
  Start({kAll}, options);
  Submit();
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(WaitTaken(0, i + 1));
    workers_[0]->Lose(i);
  }
  EXPECT_EQ(out_.Wait().finish, FinishReason::kError);
  EXPECT_EQ(out_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(workers_[0]->num_taken(), 3u);
}

TEST_F(Recovery, OtherFailuresAreTheRequestsOwn) {
  Start({kAll, kAll});
  Submit();
  workers_[0]->Send(0, 0, {}, FinishReason::kError, Internal("broken"));
  EXPECT_EQ(out_.Wait().status.code(), StatusCode::kInternal);
  EXPECT_EQ(workers_[1]->num_taken(), 0u);
}

TEST_F(Recovery, PromptAndAnswerAreSplitAndTheFirstTokenComesOnce) {
  Start({kPrefill, kPrefill, kDecode});
  workers_[0]->SetRunning(1);
  Submit();
  EXPECT_EQ(workers_[2]->kinds(), std::vector<std::string>{"decode"});
  EXPECT_EQ(workers_[1]->kinds(), std::vector<std::string>{"prefill for decode"});
  workers_[1]->Send(0, 0, {10});
  workers_[2]->Send(0, 0, {10});
  workers_[1]->Send(0, 1, {}, FinishReason::kHandedOff);
  workers_[2]->Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(gateway_->counters().redispatched, 0);
}

TEST_F(Recovery, APrefillWorkerThatIsLostFreesItsDecodeWorker) {
  Start({kPrefill, kPrefill, kDecode});
  Submit();
  workers_[0]->SetReady(false);
  workers_[0]->Lose(0);
  ASSERT_TRUE(WaitTaken(1, 1));
  EXPECT_EQ(workers_[2]->cancelled(), std::vector<std::string>{"r"});
  EXPECT_EQ(workers_[2]->kinds(), (std::vector<std::string>{"decode", "decode"}));
  workers_[2]->Send(0, 0, {}, FinishReason::kCancelled);  // of the first attempt
  EXPECT_FALSE(out_.done());
  workers_[1]->Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(Recovery, ALostDecodeWorkerIsReplacedFromTheTokens) {
  Start({kPrefill, kDecode, kDecode});
  Submit();
  workers_[0]->Send(0, 0, {10});
  workers_[0]->Send(0, 1, {}, FinishReason::kHandedOff);
  workers_[1]->Send(0, 0, {10});
  workers_[1]->Send(0, 1, {11});
  workers_[1]->SetReady(false);
  workers_[1]->Lose(0);
  ASSERT_TRUE(WaitTaken(2, 1));
  EXPECT_EQ(workers_[2]->kinds(), std::vector<std::string>{"run"});
  EXPECT_EQ(workers_[2]->request(0).resume->ids, (std::vector<int32_t>{10, 11}));
  workers_[2]->Send(0, 2, {12}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(Recovery, OneKindOfWorkerServesAloneWhenTheOtherIsGone) {
  Start({kPrefill, kDecode});
  workers_[0]->SetReady(false);
  Submit();
  EXPECT_EQ(workers_[1]->kinds(), std::vector<std::string>{"run"});
  workers_[1]->SetReady(false);
  workers_[0]->SetReady(true);
  workers_[1]->Lose(0);
  ASSERT_TRUE(WaitTaken(0, 1));
  EXPECT_EQ(workers_[0]->kinds(), std::vector<std::string>{"run"});
  workers_[0]->Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

}  // namespace
}  // namespace deepinfer
