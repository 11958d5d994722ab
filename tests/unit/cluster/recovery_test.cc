// What the gateway does when workers are lost: the client sees one stream, whatever happens behind.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cluster/gateway.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/scripted_worker.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

class Recovery : public ::testing::Test {
 protected:
  // Of workers that are equal the first is taken first.
  static GatewayOptions Fixed(GatewayOptions options) {
    options.random_seed = 2;
    return options;
  }
  void Start(std::initializer_list<WorkerRole> roles, GatewayOptions options = {}) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (const WorkerRole role : roles) {
      auto worker = std::make_unique<ScriptedWorker>(role);
      workers_.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    gateway_ = std::make_unique<Gateway>(Fixed(options), std::move(workers), &clock_);
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

TEST_F(Recovery, E06_ARequestThatWaitsForAWorkerCanBeCancelled) {
  Start({kAll});
  Submit();
  workers_[0]->Send(0, 0, {10});
  workers_[0]->SetReady(false);
  workers_[0]->Lose(0);
  gateway_->Cancel("r");
  EXPECT_EQ(out_.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(out_.Wait().counters.generated_tokens, 1);
}

TEST_F(Recovery, E06_ARequestThatIsBeingPlacedCanBeCancelled) {
  Start({kAll});
  workers_[0]->when_asked_for_load = [this] { gateway_->Cancel("r"); };
  Submit();
  ASSERT_TRUE(Eventually([this] { return out_.done(); }));
  EXPECT_EQ(out_.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(workers_[0]->num_taken(), 0u);
  workers_[0]->when_asked_for_load = nullptr;
}

TEST_F(Recovery, ItIsPutIntoQuarantineAfterTooManyAttempts) {
  GatewayOptions options;
  options.max_attempts = 3;
  Start({kAll}, options);
  Submit();
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(WaitTaken(0, i + 1));
    workers_[0]->Lose(i);
  }
  EXPECT_EQ(out_.Wait().finish, FinishReason::kQuarantined);
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

TEST_F(Recovery, E08_APrefillWorkerThatIsLostFreesItsDecodeWorker) {
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

TEST_F(Recovery, PromptAndAnswerStayWithinOneRevision) {
  Start({kPrefill, kDecode, kPrefill, kDecode});
  for (size_t i : {0, 1}) workers_[i]->SetRevision("old");
  for (size_t i : {2, 3}) workers_[i]->SetRevision("new");
  workers_[0]->SetRunning(5);
  workers_[3]->SetRunning(9);
  Submit();
  EXPECT_EQ(workers_[2]->kinds(), std::vector<std::string>{"prefill for decode"});
  EXPECT_EQ(workers_[3]->kinds(), std::vector<std::string>{"decode"});
  // Without a partner of its own revision a prefill worker gets nothing.
  workers_[3]->SetReady(false);
  workers_[3]->Lose(0);
  ASSERT_TRUE(WaitTaken(0, 1));
  EXPECT_EQ(workers_[1]->kinds(), std::vector<std::string>{"decode"});
  workers_[0]->Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(Recovery, WhoHandsOverByTheStoreMeetsThoseThatShareIt) {
  Start({kPrefill, kDecode, kDecode});
  workers_[0]->SetStore("one", true);
  workers_[1]->SetStore("another", false);
  workers_[2]->SetStore("one", false);
  workers_[2]->SetRunning(9);
  Submit();
  EXPECT_EQ(workers_[0]->kinds(), std::vector<std::string>{"prefill for decode"});
  EXPECT_EQ(workers_[2]->kinds(), std::vector<std::string>{"decode"});
  // Without a partner it gets nothing.
  workers_[2]->SetReady(false);
  workers_[2]->Lose(0);
  ASSERT_TRUE(WaitTaken(1, 1));
  EXPECT_EQ(workers_[1]->kinds(), std::vector<std::string>{"run"});
  workers_[1]->Send(0, 0, {10}, FinishReason::kStop);
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

// Both workers are there, and the state does not get from one to the other.
TEST_F(Recovery, APairThatFailedIsAvoidedForAWhile) {
  Start({kPrefill, kDecode, kDecode});
  const auto fail = [this](size_t i) {
    workers_[0]->Send(i, 0, {}, FinishReason::kError, Unavailable("no ticket"));
  };
  Submit();
  ASSERT_EQ(workers_[1]->kinds(), std::vector<std::string>{"decode"});
  fail(0);
  ASSERT_TRUE(WaitTaken(0, 2));
  EXPECT_EQ(workers_[2]->kinds(), std::vector<std::string>{"decode"}) << "the other partner";
  EXPECT_EQ(gateway_->counters().barred_pairs, 1);
  fail(1);
  ASSERT_TRUE(WaitTaken(1, 2));
  EXPECT_EQ(workers_[1]->kinds().back(), "run") << "without a partner one worker does it all";
  workers_[1]->Send(1, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(gateway_->counters().barred_pairs, 2);
  // After a while one request tries, and nobody else until it went well.
  clock_.Advance(2'000'000);
  TokenCollector first, second, third;
  const auto submit = [this](const std::string& id, TokenCollector* out) {
    EngineRequest request;
    request.request_id = id;
    request.prompt_ids = {5, 6, 7};
    return gateway_->Submit(std::move(request), out->Sink());
  };
  ASSERT_TRUE(submit("first", &first).ok());
  ASSERT_TRUE(submit("second", &second).ok());
  EXPECT_EQ(workers_[0]->num_taken(), 4u) << "one over each pair";
  ASSERT_TRUE(submit("third", &third).ok());
  EXPECT_EQ(workers_[0]->num_taken(), 4u);
  workers_[0]->SendImage(2, {}, 2);
  EXPECT_EQ(gateway_->counters().barred_pairs, 1);
  EXPECT_EQ(gateway_->counters().openings, 2);
  gateway_.reset();
}

TEST_F(Recovery, LostOrDrainingWorkersSayNothingAgainstThePair) {
  Start({kPrefill, kDecode});
  Submit();
  workers_[1]->SetReady(false);
  workers_[1]->Lose(0);
  ASSERT_TRUE(WaitTaken(0, 2));
  EXPECT_EQ(workers_[0]->kinds().back(), "run");
  EXPECT_EQ(gateway_->counters().openings, 0);
  workers_[0]->Send(1, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

// It is quick at failing, and would get all requests.
TEST_F(Recovery, AWorkerThatFailsOneRequestAfterTheOtherIsAvoided) {
  Start({kAll, kAll});
  const auto submit = [this](int i, TokenCollector* out) {
    EngineRequest request;
    request.request_id = "r" + std::to_string(i);
    request.prompt_ids = {5, 6, 7};
    return gateway_->Submit(std::move(request), out->Sink());
  };
  std::vector<TokenCollector> outs(7);
  for (int i = 0; i < 5; ++i) {
    const auto n = static_cast<size_t>(i);
    ASSERT_TRUE(submit(i, &outs[n]).ok());
    ASSERT_EQ(workers_[0]->num_taken(), n + 1);
    workers_[0]->Send(n, 0, {}, FinishReason::kError, Internal("broken"));
  }
  ASSERT_TRUE(submit(5, &outs[5]).ok());
  EXPECT_EQ(workers_[0]->num_taken(), 5u);
  EXPECT_EQ(workers_[1]->num_taken(), 1u);
  EXPECT_EQ(gateway_->counters().barred_workers, 1);
  workers_[1]->SetReady(false);
  ASSERT_TRUE(submit(6, &outs[6]).ok());
  EXPECT_EQ(workers_[0]->num_taken(), 6u) << "better than nobody";
  gateway_.reset();
}

TEST_F(Recovery, MistakesOfClientsSayNothingAgainstAWorker) {
  Start({kAll});
  for (int i = 0; i < 50; ++i) {
    TokenCollector out;
    EngineRequest request;
    request.request_id = "r";
    request.prompt_ids = {5};
    ASSERT_TRUE(gateway_->Submit(std::move(request), out.Sink()).ok());
    workers_[0]->Send(static_cast<size_t>(i), 0, {}, FinishReason::kError, InvalidRequest("no"));
    EXPECT_EQ(out.Wait().status.code(), StatusCode::kInvalidRequest);
  }
  EXPECT_EQ(gateway_->counters().openings, 0);
}

}  // namespace
}  // namespace deepinfer
