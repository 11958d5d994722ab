// Requests that wait at the gateway: for a worker with credit, and for the budget of their tenant.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/gateway.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/scripted_worker.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

// Requests beyond what it can run that a worker of one place takes.
constexpr int32_t kSpare = 2;

class GatewayQueue : public ::testing::Test {
 protected:
  void Start(GatewayOptions options = {}) {
    auto worker = std::make_unique<ScriptedWorker>(WorkerRole::kAll);
    worker_ = worker.get();
    worker_->SetMaxRunning(1);
    worker_->when_asked_for_load = [this] {
      ++num_looks_;
      if (look_lasts_us_ == 0) return;
      clock_.Advance(look_lasts_us_.exchange(0));
      SetBusy(false);
    };
    std::vector<std::unique_ptr<Worker>> workers;
    workers.push_back(std::move(worker));
    gateway_ = std::make_unique<Gateway>(options, std::move(workers), &clock_);
  }
  // A token costs a millisecond, in the prompt and in the answer.
  static PredictedCosts Costs() { return {.prompt_us_per_token = 1000, .step_us_per_row = 1000}; }
  void SetBusy(bool busy) { worker_->SetRunning(busy ? 1 + kSpare : 0); }

  static EngineRequest Request(std::string id, RequestClass c = RequestClass::kInteractive,
                               uint64_t tenant = 0) {
    EngineRequest request;
    request.request_id = std::move(id);
    request.prompt_ids = {5, 6, 7};
    request.request_class = c;
    request.cache_retention.tenant_tag = tenant;
    request.sampling.max_tokens = 7;
    return request;
  }
  Status Submit(EngineRequest request) {
    auto& out = outs_[request.request_id];
    out = std::make_unique<TokenCollector>();
    return gateway_->Submit(std::move(request), out->Sink());
  }
  bool WaitTaken(size_t count) {
    return Eventually([&] { return worker_->num_taken() == count; });
  }
  int64_t num_waiting() const { return gateway_->Load().waiting; }
  // Ends what the worker runs.
  void Finish() {
    for (size_t i = 0; i < worker_->num_taken(); ++i) {
      worker_->Send(i, 0, {1}, FinishReason::kStop);
    }
  }

  FakeClock clock_{1'000'000};
  std::atomic<int> num_looks_{0};          // of the gateway at the load of the worker
  std::atomic<int64_t> look_lasts_us_{0};  // of the next one, after which the worker is free
  std::map<std::string, std::unique_ptr<TokenCollector>> outs_;
  ScriptedWorker* worker_ = nullptr;
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(GatewayQueue, WithoutCreditARequestWaitsHereAndItsAccountSaysSo) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  EXPECT_EQ(num_waiting(), 1);
  EXPECT_EQ(gateway_->counters().waiting[0], 1);
  EXPECT_EQ(worker_->num_taken(), 0u);
  clock_.Advance(70'000);
  EXPECT_EQ(gateway_->counters().oldest_wait_us, 70'000);
  SetBusy(false);
  ASSERT_TRUE(WaitTaken(1));
  EXPECT_EQ(num_waiting(), 0);
  Finish();
  EXPECT_EQ(outs_["a"]->Wait().counters.queue_us, 70'000);
  EXPECT_EQ(gateway_->counters().queued, 1);
  EXPECT_EQ(gateway_->counters().redispatched, 0);
}

// Also when the time passes while the gateway looks for a worker.
TEST_F(GatewayQueue, AWaitEndsWhenTheRequestIsSent) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  look_lasts_us_ = 70'000;
  ASSERT_TRUE(WaitTaken(1));
  Finish();
  EXPECT_EQ(outs_["a"]->Wait().counters.queue_us, 70'000);
}

TEST_F(GatewayQueue, ClassesGoInTheirOrderHoweverTheyCame) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("batch", RequestClass::kBatch)).ok());
  ASSERT_TRUE(Submit(Request("agent", RequestClass::kAgent)).ok());
  ASSERT_TRUE(Submit(Request("late")).ok());
  EngineRequest urgent = Request("urgent");
  urgent.first_token_deadline_us = clock_.NowUs() + 500'000;
  ASSERT_TRUE(Submit(std::move(urgent)).ok());
  SetBusy(false);
  ASSERT_TRUE(WaitTaken(4));
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"urgent", "late", "agent", "batch"}));
  Finish();
}

// Batch work has less credit, also when it is its turn.
TEST_F(GatewayQueue, BatchWorkThatFindsNoCreditHoldsNobodyUp) {
  Start();
  worker_->SetMaxRunning(8);
  PredictedCosts costs = Costs();
  costs.queued_us = 100'000;
  worker_->SetCosts(costs);
  worker_->SetRunning(1);
  ASSERT_TRUE(Submit(Request("batch", RequestClass::kBatch)).ok());
  EXPECT_EQ(num_waiting(), 1);
  clock_.Advance(10 * kMaxWaitBatchUs);
  ASSERT_TRUE(Submit(Request("a")).ok());
  ASSERT_TRUE(WaitTaken(1));
  EXPECT_EQ(worker_->taken(), std::vector<std::string>{"a"});
  SetBusy(false);
  ASSERT_TRUE(WaitTaken(2));
  Finish();
}

TEST_F(GatewayQueue, ATenantThatFloodsItDelaysItselfOnly) {
  Start();
  SetBusy(true);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Submit(Request("a" + std::to_string(i), RequestClass::kInteractive, 1)).ok());
  }
  ASSERT_TRUE(Submit(Request("b", RequestClass::kInteractive, 2)).ok());
  SetBusy(false);
  ASSERT_TRUE(WaitTaken(5));
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"a0", "b", "a1", "a2", "a3"}));
  Finish();
}

TEST_F(GatewayQueue, NewRequestsDoNotPassThoseThatWait) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  // There is room now, but the keeper has not looked yet, or it has: in either case a is first.
  SetBusy(false);
  ASSERT_TRUE(Submit(Request("b")).ok());
  ASSERT_TRUE(WaitTaken(2));
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"a", "b"}));
  Finish();
}

TEST_F(GatewayQueue, WhatIsCancelledThereEndsAtOnceAndReachesNoWorker) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  gateway_->Cancel("a");
  EXPECT_EQ(outs_["a"]->Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(num_waiting(), 0);
  EXPECT_EQ(worker_->num_taken(), 0u);
  EXPECT_TRUE(Submit(Request("a")).ok()) << "its id is free again";
}

TEST_F(GatewayQueue, DeadlinesPassThereToo) {
  Start();
  SetBusy(true);
  const int64_t then_us = clock_.NowUs() + 1000;
  EngineRequest queue = Request("queue"), total = Request("total"), first = Request("first");
  queue.queue_deadline_us = total.deadline_us = first.first_token_deadline_us = then_us;
  for (EngineRequest* request : {&queue, &total, &first}) {
    ASSERT_TRUE(Submit(*request).ok());
  }
  clock_.Advance(999);
  EXPECT_EQ(num_waiting(), 3);
  clock_.Advance(1);
  EXPECT_EQ(outs_["queue"]->Wait().finish, FinishReason::kQueueTimeout);
  EXPECT_EQ(outs_["queue"]->Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(outs_["total"]->Wait().finish, FinishReason::kDeadline);
  EXPECT_EQ(outs_["first"]->Wait().finish, FinishReason::kDeadline);
  EXPECT_EQ(worker_->num_taken(), 0u);
}

TEST_F(GatewayQueue, ItIsBounded) {
  Start({.max_queued_requests = 2});
  SetBusy(true);
  EXPECT_TRUE(Submit(Request("a")).ok());
  EXPECT_TRUE(Submit(Request("b")).ok());
  EXPECT_EQ(Submit(Request("c")).code(), StatusCode::kResourceExhausted);
  EXPECT_GE(gateway_->RetryAfterSeconds(), 1);
}

TEST_F(GatewayQueue, MistakesOfAClientDoNotWait) {
  Start();
  SetBusy(true);
  EngineRequest request = Request("a");
  request.prompt_ids = {100'000};
  EXPECT_EQ(Submit(std::move(request)).code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(num_waiting(), 0);
}

TEST_F(GatewayQueue, ChoicesThatShareAPromptGoTogetherUnlessTheirLeaderIsCancelled) {
  Start();
  SetBusy(true);
  EngineRequest branch = Request("a1"), other = Request("b1");
  branch.branch_of = "a0";
  other.branch_of = "b0";
  ASSERT_TRUE(Submit(Request("a0")).ok());
  ASSERT_TRUE(Submit(Request("b0")).ok());
  ASSERT_TRUE(Submit(std::move(branch)).ok());
  ASSERT_TRUE(Submit(std::move(other)).ok());
  EXPECT_EQ(num_waiting(), 4);
  gateway_->Cancel("b0");
  EXPECT_EQ(outs_["b0"]->Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(num_waiting(), 3);
  SetBusy(false);
  ASSERT_TRUE(WaitTaken(3));
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"a0", "a1", "b1"}));
  EXPECT_EQ(worker_->request(1).branch_of, "a0");
  Finish();
}

TEST_F(GatewayQueue, WithNoWorkerLeftItWaitsForOneAndGivesUpInTheEnd) {
  Start({.recovery_us = 5'000'000});
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  worker_->SetReady(false);
  EXPECT_EQ(Submit(Request("b")).code(), StatusCode::kUnavailable) << "nobody to wait for";
  // The keeper has to see that nobody is left before the clock is moved on.
  const int before = num_looks_;
  ASSERT_TRUE(Eventually([&] { return num_looks_ > before + 3; }));
  EXPECT_FALSE(outs_["a"]->done());
  clock_.Advance(5'000'001);
  EXPECT_EQ(outs_["a"]->Wait().status.code(), StatusCode::kUnavailable);
}

TEST_F(GatewayQueue, ARefusalOfTheWorkerIsTriedAgain) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  worker_->Refuse(ResourceExhausted("full after all"));
  SetBusy(false);
  ASSERT_TRUE(Eventually([&] { return gateway_->counters().waiting[0] == 0; }));
  worker_->Refuse(OkStatus());
  ASSERT_TRUE(WaitTaken(1));
  Finish();
  EXPECT_EQ(outs_["a"]->Wait().finish, FinishReason::kStop);
}

TEST_F(GatewayQueue, ItsEndEndsWhatWaits) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  gateway_.reset();
  EXPECT_EQ(outs_["a"]->Wait().finish, FinishReason::kCancelled);
}

TEST_F(GatewayQueue, ADrainLetsWhatWaitsRunAndCancelsTheRest) {
  Start();
  SetBusy(true);
  ASSERT_TRUE(Submit(Request("a")).ok());
  gateway_->Drain(clock_.NowUs());
  EXPECT_EQ(outs_["a"]->Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(worker_->num_taken(), 0u);
}

// Ten tokens are ten milliseconds; a bucket holds fifteen and fills with one in two.
TEST_F(GatewayQueue, ATenantWithoutBudgetWaitsWhileOthersGoOn) {
  Start({.tenant_budget = 0.5, .tenant_burst_s = 0.015});
  worker_->SetCosts(Costs());
  const auto submit = [this](const std::string& id, uint64_t tenant) {
    return Submit(Request(id, RequestClass::kInteractive, tenant));
  };
  for (const char* id : {"a0", "a1", "a2"}) ASSERT_TRUE(submit(id, 1).ok());
  ASSERT_TRUE(submit("b0", 2).ok());
  ASSERT_TRUE(WaitTaken(3));
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"a0", "a1", "b0"}))
      << "two answers have used up the budget of the first tenant";
  EXPECT_EQ(num_waiting(), 1);
  EngineRequest impatient = Request("a3", RequestClass::kInteractive, 1);
  impatient.queue_deadline_us = clock_.NowUs() + 20'000;
  EXPECT_EQ(Submit(std::move(impatient)).code(), StatusCode::kResourceExhausted)
      << "5 ms of debt and 10 of its own queue take 30 to fill";
  EXPECT_EQ(gateway_->counters().over_budget, 1);
  clock_.Advance(10'000);
  ASSERT_TRUE(WaitTaken(4));
  EXPECT_EQ(worker_->taken().back(), "a2");
  Finish();
}

TEST_F(GatewayQueue, TokensThatNeverCameAreGivenBack) {
  Start({.tenant_budget = 0.001, .tenant_burst_s = 0.015});
  worker_->SetCosts(Costs());
  // 10 of 15 ms, of which an answer of one token in place of seven gives 6 back.
  ASSERT_TRUE(Submit(Request("a0", RequestClass::kInteractive, 1)).ok());
  Finish();
  EXPECT_EQ(outs_["a0"]->Wait().finish, FinishReason::kStop);
  ASSERT_TRUE(Submit(Request("a1", RequestClass::kInteractive, 1)).ok());
  ASSERT_TRUE(Submit(Request("a2", RequestClass::kInteractive, 1)).ok());
  EXPECT_EQ(worker_->taken(), (std::vector<std::string>{"a0", "a1", "a2"}));
  worker_->EndAll();
}

}  // namespace
}  // namespace deepinfer
