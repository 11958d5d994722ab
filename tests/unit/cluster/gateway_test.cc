// Admission, routing, cancellation and drain of the gateway over workers that only record calls.

#include "cluster/gateway.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/fake_clock.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

class RecordingWorker final : public Worker {
 public:
  WorkerInfo info() const override { return its_info; }
  Status Submit(EngineRequest request, TokenSink) override {
    submitted.push_back(request.request_id);
    return answer;
  }
  Status SubmitDecode(EngineRequest request, TokenSink) override {
    answers.push_back(request.request_id);
    return answer;
  }
  Status SubmitPrefill(EngineRequest request, const std::string&, TokenSink) override {
    prompts.push_back(request.request_id);
    return answer;
  }
  void Cancel(std::string_view request_id) override { cancelled.emplace_back(request_id); }
  LoadReport Load() const override { return load; }
  bool healthy() const override { return is_healthy; }
  EngineStatistics Statistics() const override { return statistics; }
  void Drain(int64_t deadline_us) override { drained_until.push_back(deadline_us); }

  WorkerInfo its_info;
  LoadReport load;
  bool is_healthy = true;
  EngineStatistics statistics;
  Status answer;
  std::vector<std::string> submitted, answers, prompts, cancelled;
  std::vector<int64_t> drained_until;
};

class GatewayTest : public ::testing::Test {
 protected:
  void Start(int num_workers, GatewayOptions options) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < num_workers; ++i) {
      auto worker = std::make_unique<RecordingWorker>();
      worker->statistics.incarnation = static_cast<uint64_t>(i + 1);
      workers_.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    gateway_ = std::make_unique<Gateway>(options, std::move(workers), &clock_);
  }
  Status Submit(std::string id, int64_t queue_deadline_us = 0) {
    EngineRequest request;
    request.request_id = std::move(id);
    request.queue_deadline_us = queue_deadline_us;
    return gateway_->Submit(std::move(request), [](TokenEvent) {});
  }

  FakeClock clock_{0};
  std::vector<RecordingWorker*> workers_;
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(GatewayTest, IsHealthyWhileSomeWorkerIs) {
  Start(2, {});
  EXPECT_TRUE(gateway_->healthy());
  workers_[0]->is_healthy = false;
  EXPECT_TRUE(gateway_->healthy());
  workers_[1]->is_healthy = false;
  EXPECT_FALSE(gateway_->healthy());
}

TEST_F(GatewayTest, IsReadyWhileSomeWorkerHasRoom) {
  GatewayOptions options;
  options.max_queued_requests = 8;
  Start(2, options);
  EXPECT_EQ(gateway_->WhyNotReady(), "");
  for (RecordingWorker* const worker : workers_) {
    worker->load.running = 4;
    worker->load.waiting = 1;
    worker->load.kv_tokens = 600;
    worker->load.kv_capacity_tokens = 1024;
  }
  EXPECT_EQ(gateway_->WhyNotReady(), "The cache is full");
  workers_[1]->load.waiting = 0;
  EXPECT_EQ(gateway_->WhyNotReady(), "");
  workers_[1]->load.waiting = 7;
  workers_[1]->load.kv_capacity_tokens = 0;
  EXPECT_EQ(gateway_->WhyNotReady(), "The queue is full");
  workers_[0]->load.draining = true;
  workers_[1]->load.ready = false;
  EXPECT_EQ(gateway_->WhyNotReady(), "No worker takes requests");
}

// Holds the sinks of its requests, as real workers do, and answers them when it ends.
class KeepingWorker final : public Worker {
 public:
  explicit KeepingWorker(bool* ended) : ended_(ended) {}
  ~KeepingWorker() override {
    *ended_ = true;
    for (const TokenSink& sink : sinks_) {
      TokenEvent event;
      event.finish = FinishReason::kCancelled;
      sink(std::move(event));
    }
  }
  WorkerInfo info() const override { return {}; }
  Status Submit(EngineRequest, TokenSink sink) override {
    sinks_.push_back(std::move(sink));
    return OkStatus();
  }
  void Cancel(std::string_view) override {}
  LoadReport Load() const override { return {}; }
  bool healthy() const override { return true; }
  EngineStatistics Statistics() const override { return {}; }
  void Drain(int64_t) override {}

 private:
  bool* const ended_;
  std::vector<TokenSink> sinks_;
};

TEST_F(GatewayTest, ItsEndEndsWorkersThatStillRunRequests) {
  bool ended = false;
  int num_ends = 0;
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::make_unique<KeepingWorker>(&ended));
  gateway_ = std::make_unique<Gateway>(GatewayOptions{}, std::move(workers), &clock_);
  EngineRequest request;
  request.request_id = "a";
  const Status status = gateway_->Submit(std::move(request), [&](const TokenEvent& event) {
    num_ends += event.finish != FinishReason::kNone;
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
  gateway_.reset();
  EXPECT_TRUE(ended);
  EXPECT_EQ(num_ends, 1);
}

TEST_F(GatewayTest, WhenTheLastWorkerHasLeftNothingIsAccepted) {
  auto worker = std::make_unique<RecordingWorker>();
  worker->its_info.endpoint = "unix:gone";
  worker->load.ready = false;
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(worker));
  gateway_ = std::make_unique<Gateway>(GatewayOptions{}, std::move(workers), &clock_);
  gateway_->FollowWorkers({}, nullptr);
  SpinUntil("the worker to leave", [this] { return gateway_->Statistics().empty(); });
  EXPECT_EQ(Submit("a").code(), StatusCode::kUnavailable);
}

TEST_F(GatewayTest, RoutesToTheWorkerWithFewestLiveRequestsTheFirstOfEquals) {
  Start(3, {});
  workers_[0]->load.running = 1;
  workers_[0]->load.waiting = 2;
  workers_[1]->load.running = 1;
  workers_[1]->load.waiting = 1;
  workers_[2]->load.running = 2;
  EXPECT_TRUE(Submit("a").ok());
  workers_[1]->load.waiting = 5;
  EXPECT_TRUE(Submit("b").ok());
  EXPECT_TRUE(workers_[0]->submitted.empty());
  EXPECT_EQ(workers_[1]->submitted, std::vector<std::string>{"a"});
  EXPECT_EQ(workers_[2]->submitted, std::vector<std::string>{"b"});
}

TEST_F(GatewayTest, GivesNoAnswersToWorkersWithoutADecoder) {
  Start(2, {});
  workers_[0]->its_info.encoder_only = true;
  workers_[0]->its_info.role = WorkerRole::kPrefill;
  workers_[1]->its_info.role = WorkerRole::kPrefill;
  EXPECT_TRUE(Submit("a").ok());
  EXPECT_TRUE(workers_[0]->submitted.empty());
  EXPECT_EQ(workers_[1]->submitted.size(), 1u);
  workers_[1]->load.draining = true;
  EXPECT_EQ(Submit("b").code(), StatusCode::kUnavailable);
}

TEST_F(GatewayTest, GivesPromptsToWorkersWithoutADecoder) {
  Start(2, {});
  workers_[0]->its_info.encoder_only = true;
  workers_[0]->its_info.role = WorkerRole::kPrefill;
  workers_[1]->its_info.role = WorkerRole::kDecode;
  EXPECT_TRUE(Submit("a").ok());
  EXPECT_EQ(workers_[0]->prompts, std::vector<std::string>{"a"});
  EXPECT_EQ(workers_[1]->answers, std::vector<std::string>{"a"});
  EXPECT_TRUE(workers_[1]->submitted.empty());
}

// More workers than a request may have attempts hold runs of lost gateways, and none has this one.
TEST_F(GatewayTest, QueriesForRunsAreNoAttempts) {
  Start(9, {.max_attempts = 8});
  for (RecordingWorker* worker : workers_) worker->load.orphans = 1;
  EngineRequest request;
  request.request_id = "a";
  request.work_id = "work";
  EXPECT_TRUE(gateway_->Submit(std::move(request), [](TokenEvent) {}).ok());
  EXPECT_EQ(workers_[0]->submitted, std::vector<std::string>{"a"});
  EXPECT_EQ(gateway_->counters().redispatched, 0);
}

TEST_F(GatewayTest, SkipsWorkersThatDrain) {
  Start(2, {});
  workers_[0]->load.draining = true;
  workers_[1]->load.running = 9;
  EXPECT_TRUE(Submit("a").ok());
  EXPECT_EQ(workers_[1]->submitted.size(), 1u);
  workers_[1]->load.draining = true;
  EXPECT_EQ(Submit("b").code(), StatusCode::kUnavailable);
}

TEST_F(GatewayTest, RefusesWhenTheSumOfQueuesIsFull) {
  Start(2, {.max_queued_requests = 5});
  workers_[0]->load.waiting = 2;
  workers_[1]->load.waiting = 2;
  EXPECT_TRUE(Submit("a").ok());
  workers_[1]->load.waiting = 3;
  EXPECT_EQ(Submit("b").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(workers_[0]->submitted.size() + workers_[1]->submitted.size(), 1u);
}

// Ten requests wait and one starts every two seconds: a new one would wait for twenty.
TEST_F(GatewayTest, RefusesWhatWouldWaitPastItsQueueDeadline) {
  Start(2, {});
  workers_[0]->statistics.waiting = 4;
  workers_[1]->statistics.waiting = 6;
  EXPECT_TRUE(Submit("unknown", 1).ok()) << "nothing is known about the queue yet";
  for (int i = 0; i < 400; ++i) {
    clock_.Advance(2'000'000);
    ++workers_[i % 2]->statistics.started;
    EXPECT_TRUE(Submit(std::to_string(i)).ok()) << "without a deadline any wait is fine";
  }
  const int64_t now_us = clock_.NowUs();
  EXPECT_EQ(Submit("late", now_us + 15'000'000).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Submit("patient", now_us + 25'000'000).ok());
  EXPECT_NEAR(gateway_->RetryAfterSeconds(), 19, 2);
  workers_[0]->statistics.waiting = workers_[1]->statistics.waiting = 0;
  EXPECT_TRUE(Submit("empty", now_us + 1'000'000).ok());
  EXPECT_EQ(gateway_->RetryAfterSeconds(), 1);
}

// A prompt costs 10 ms a token, one token is a second and the promise two.
TEST_F(GatewayTest, RefusesWhatWouldMissItsPromiseUntilThereIsRoomAgain) {
  Start(2, {.ttft_slo_us = 2'000'000});
  const auto queue = [&](double first_s, double second_s) {
    for (RecordingWorker* worker : workers_) {
      worker->load.costs.prompt_us_per_token = 10'000;
      worker->load.costs.step_us_per_row = 1'000;
    }
    workers_[0]->load.costs.queued_us = first_s * 1e6;
    workers_[1]->load.costs.queued_us = second_s * 1e6;
  };
  auto submit = [this, n = 0](RequestClass of = RequestClass::kInteractive) mutable {
    EngineRequest request;
    request.request_id = "slo" + std::to_string(n++);
    request.prompt_ids.assign(50, 1);
    request.request_class = of;
    return gateway_->Submit(std::move(request), [](TokenEvent) {}).code();
  };
  queue(9, 1);
  EXPECT_EQ(submit(), StatusCode::kOk) << "the other worker is quick enough";
  queue(9, 6);
  EXPECT_EQ(submit(), StatusCode::kResourceExhausted);
  EXPECT_NEAR(gateway_->RetryAfterSeconds(), 5, 1) << "by then the queue is short enough";
  EXPECT_EQ(submit(RequestClass::kBatch), StatusCode::kOk) << "nothing is promised to it";
  queue(9, 1.4);
  EXPECT_EQ(submit(), StatusCode::kResourceExhausted) << "it needs some room before it admits";
  queue(9, 1.2);
  EXPECT_EQ(submit(), StatusCode::kOk);
  queue(9, 6);
  workers_[0]->load.costs.error = 0.5;
  EXPECT_EQ(submit(), StatusCode::kOk) << "predictions that are wrong refuse nobody";
  EXPECT_EQ(gateway_->counters().shed, 2);
}

TEST_F(GatewayTest, PassesTheWorkersAnswerOn) {
  Start(1, {});
  workers_[0]->answer = InvalidRequest("no");
  EXPECT_EQ(Submit("a").code(), StatusCode::kInvalidRequest);
}

TEST_F(GatewayTest, CancelsOnlyWhereTheRequestRuns) {
  Start(2, {});
  gateway_->Cancel("x");
  EXPECT_TRUE(Submit("a").ok());
  gateway_->Cancel("a");
  EXPECT_EQ(workers_[0]->cancelled, std::vector<std::string>{"a"});
  EXPECT_TRUE(workers_[1]->cancelled.empty());
}

TEST_F(GatewayTest, SumsTheLoad) {
  Start(2, {});
  const auto set = [](RecordingWorker* worker, int32_t running, int64_t kv_tokens, bool draining) {
    LoadReport& load = worker->load;
    load.running = running;
    load.waiting = running + 1;
    load.kv_tokens = kv_tokens;
    load.kv_capacity_tokens = 10 * kv_tokens;
    load.queued_prompt_tokens = kv_tokens / 10;
    load.draining = draining;
  };
  set(workers_[0], 1, 40, false);
  set(workers_[1], 5, 80, true);
  const LoadReport sum = gateway_->Load();
  EXPECT_EQ(sum.running, 6);
  EXPECT_EQ(sum.waiting, 8);
  EXPECT_EQ(sum.kv_tokens, 120);
  EXPECT_EQ(sum.kv_capacity_tokens, 1200);
  EXPECT_EQ(sum.queued_prompt_tokens, 12);
  EXPECT_FALSE(sum.draining) << "one draining worker is not a draining gateway";
}

TEST_F(GatewayTest, DrainRefusesNewWorkAndDrainsEveryWorker) {
  Start(2, {});
  EXPECT_FALSE(gateway_->draining());
  gateway_->Drain(1234);
  EXPECT_TRUE(gateway_->draining());
  EXPECT_TRUE(gateway_->Load().draining);
  EXPECT_EQ(Submit("late").code(), StatusCode::kUnavailable);
  for (const RecordingWorker* worker : workers_) {
    EXPECT_EQ(worker->drained_until, std::vector<int64_t>{1234});
    EXPECT_TRUE(worker->submitted.empty());
  }
}

}  // namespace
}  // namespace deepinfer
