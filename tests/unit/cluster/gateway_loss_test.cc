// Runs that outlive their gateway: another one that asks for the same work takes them over, from
// the first token on; what nobody asks for ends.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cluster/gateway.h"
#include "cluster/remote_worker.h"
#include "cluster/session.h"
#include "cluster/worker_service.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/scripted_worker.h"
#include "support/temp_dir.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

constexpr int64_t kOrphanUs = 10'000'000;

class GatewayLoss : public ::testing::Test {
 protected:
  void Start(WorkerServiceOptions options = {}) {
    options.report_interval_us = 5'000;
    service_ = std::make_unique<WorkerService>(options, &engine_, &clock_);
    auto listening =
        SessionServer::Listen("unix:" + dir_.File("w"), [this](Session* s) { service_->Serve(s); });
    ASSERT_TRUE(listening.ok());
    sessions_ = *std::move(listening);
    first_ = Connect();
    second_ = Connect();
  }
  ~GatewayLoss() override {
    first_.reset();
    second_.reset();
    sessions_.reset();
    engine_.EndAll();
    service_.reset();
  }
  std::unique_ptr<RemoteWorker> Connect(const RemoteWorkerOptions& options = {}) {
    auto remote = std::make_unique<RemoteWorker>("unix:" + dir_.File("w"), ++num_gateways_,
                                                 WorkerInfo{}, options, &clock_);
    EXPECT_TRUE(remote->WaitReady(std::chrono::seconds(20)));
    return remote;
  }
  static EngineRequest Request(const std::string& id, std::string work_id = "work") {
    EngineRequest request;
    request.request_id = id;
    request.prompt_ids = {5, 6, 7};
    request.work_id = std::move(work_id);
    return request;
  }
  // The first gateway submits, hears two tokens, and is gone.
  void SubmitAndLose(std::string work_id = "work") {
    ASSERT_TRUE(first_->Submit(Request("a", std::move(work_id)), Listen()).ok());
    ASSERT_TRUE(Eventually([&] { return engine_.num_taken() == 1; }));
    engine_.Send(0, 0, {10});
    engine_.Send(0, 1, {11});
    ASSERT_TRUE(Eventually([&] { return num_heard_ > 0; }));
    first_.reset();
  }
  // A gateway that hears something and then no more.
  TokenSink Listen() {
    return [this](const TokenEvent& event) {
      ++num_heard_;
      if (event.status.code() == StatusCode::kUnavailable) was_lost_ = true;
    };
  }
  // What the worker does with every report it has done once with the clock of now.
  bool WaitReports() {
    // The second one was begun after the first had come.
    for (const int32_t mark : {1000, 2000}) {
      engine_.SetRunning(mark);
      if (!Eventually([&] { return second_->Load().running / 1000 == mark / 1000; })) return false;
    }
    return true;
  }
  bool WaitOrphans(int32_t count) {
    return Eventually([&] { return second_->Load().orphans == count; });
  }

  TempDir dir_;
  FakeClock clock_{1};
  ScriptedWorker engine_{WorkerRole::kAll};
  std::atomic<int> num_heard_{0};
  std::atomic<bool> was_lost_{false};
  TokenCollector out_;
  uint64_t num_gateways_ = 0;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<RemoteWorker> first_, second_;
};

TEST_F(GatewayLoss, AnotherGatewayTakesTheRunOverFromItsFirstToken) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  engine_.Send(0, 2, {12});  // with nobody listening
  ASSERT_TRUE(second_->Adopt(Request("b"), out_.Sink()).ok());
  EXPECT_TRUE(WaitOrphans(0));
  engine_.Send(0, 3, {13}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(out_.Wait().counters.generated_tokens, 4);
  EXPECT_EQ(engine_.num_taken(), 1u) << "nothing was computed twice";
  EXPECT_TRUE(engine_.cancelled().empty());
}

TEST_F(GatewayLoss, AnAnswerThatWasCompleteMeanwhileIsToldInWhole) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  engine_.Send(0, 2, {12}, FinishReason::kLength);
  ASSERT_TRUE(second_->Adopt(Request("b"), out_.Sink()).ok());
  EXPECT_EQ(out_.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_TRUE(WaitOrphans(0));
}

TEST_F(GatewayLoss, OtherWorkIsNotFoundAndTheRunStays) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  EXPECT_EQ(second_->Adopt(Request("b", "other"), out_.Sink()).code(), StatusCode::kNotFound);
  EXPECT_FALSE(out_.done());
  EXPECT_TRUE(second_->Adopt(Request("c"), out_.Sink()).ok());
  engine_.Send(0, 2, {12}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(GatewayLoss, ARunWhoseGatewayLivesIsNotTakenAway) {
  Start();
  ASSERT_TRUE(first_->Submit(Request("a"), Listen()).ok());
  ASSERT_TRUE(Eventually([&] { return engine_.num_taken() == 1; }));
  EXPECT_EQ(second_->Adopt(Request("b"), out_.Sink()).code(), StatusCode::kNotFound);
}

TEST_F(GatewayLoss, ARunWithoutAWorkIdEndsAtOnce) {
  Start();
  SubmitAndLose("");
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
  EXPECT_EQ(second_->Load().orphans, 0);
}

TEST_F(GatewayLoss, AnOrphanEndsWhenNobodyAsksForIt) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  clock_.Advance(kOrphanUs - 1);
  ASSERT_TRUE(WaitReports());
  EXPECT_TRUE(engine_.cancelled().empty());
  clock_.Advance(1);
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
  engine_.Send(0, 2, {}, FinishReason::kCancelled);
  EXPECT_TRUE(
      Eventually([&] { return second_->Load().orphans == 0 && second_->Load().kept_bytes == 0; }));
}

TEST_F(GatewayLoss, OperatorsAreNoGateways) {
  Start();
  RemoteWorkerOptions options;
  options.is_operator = true;
  const std::unique_ptr<RemoteWorker> tool = Connect(options);
  EXPECT_TRUE(Eventually([&] { return tool->Load().gateways == 2; }));
  first_.reset();
  EXPECT_TRUE(Eventually([&] { return tool->Load().gateways == 1; }));
}

// Only the gateway that is lost would have told it that the prompt failed.
TEST_F(GatewayLoss, AnAnswerThatWaitsForItsPromptIsNotTakenOver) {
  Start();
  ASSERT_TRUE(first_->SubmitDecode(Request("a"), Listen()).ok());
  ASSERT_TRUE(Eventually([&] { return second_->Load().running == 1; }));
  first_.reset();
  ASSERT_TRUE(Eventually([&] { return second_->Load().gateways == 1; }));
  ASSERT_TRUE(WaitReports());
  EXPECT_EQ(second_->Load().orphans, 0);
  EXPECT_EQ(second_->Adopt(Request("b"), out_.Sink()).code(), StatusCode::kNotFound);
  // The work begins anew and ends what waits.
  engine_.SetRunning(0);
  ASSERT_TRUE(second_->Submit(Request("b"), out_.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return engine_.num_taken() == 1; }));
  EXPECT_TRUE(Eventually([&] { return second_->Load().running == 0; }));
  engine_.Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(GatewayLoss, TheSameWorkSubmittedAnewEndsTheOrphan) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  ASSERT_TRUE(second_->Submit(Request("b"), out_.Sink()).ok());
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
  ASSERT_TRUE(Eventually([&] { return engine_.num_taken() == 2; }));
  engine_.Send(1, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
}

TEST_F(GatewayLoss, ARunThatWasTakenOverIsCancelledByItsNewName) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  ASSERT_TRUE(second_->Adopt(Request("b"), out_.Sink()).ok());
  second_->Cancel("b");
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
  engine_.Send(0, 2, {}, FinishReason::kCancelled);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kCancelled);
}

// It was cut off for a while: what it had went on elsewhere.
TEST_F(GatewayLoss, AGatewayThatComesBackCancelsWhatItHad) {
  Start();
  ASSERT_TRUE(first_->Submit(Request("a"), Listen()).ok());
  ASSERT_TRUE(Eventually([&] { return engine_.num_taken() == 1; }));
  first_->Sweep(clock_.NowUs() + 10'000'000);  // it hears nothing and hangs up
  EXPECT_TRUE(Eventually([&] { return was_lost_.load(); }));
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
}

// A run of the work whose gateway was lost.
class KeptOrphan : public ::testing::Test {
 protected:
  std::shared_ptr<RunOutput> Orphan(KeptRuns::Part part) {
    const auto link = std::make_shared<GatewayLink>(nullptr, 1, 2);
    EngineRequest request;
    request.request_id = "a";
    request.work_id = "work";
    std::string replaced;
    auto output = kept_.Keep(request, "a/1", part, link, &replaced);
    EXPECT_TRUE(kept_.Orphan(*link, 0).empty());
    return output;
  }
  static TokenEvent Event(FinishReason finish) {
    TokenEvent event;
    event.ids = {1};
    event.finish = finish;
    return event;
  }

  KeptRuns kept_;
  const std::shared_ptr<GatewayLink> next_ = std::make_shared<GatewayLink>(nullptr, 1, 3);
};

TEST_F(KeptOrphan, AnAnswerIsTakenOverOnceItHasItsState) {
  const auto output = Orphan(KeptRuns::Part::kAnswer);
  EXPECT_EQ(kept_.num_orphans(), 0);
  EXPECT_FALSE(kept_.Adopt("work", "b", 1, next_));
  output->SendEvent("a", 1, Event(FinishReason::kNone));
  EXPECT_EQ(kept_.num_orphans(), 1);
  EXPECT_TRUE(kept_.Adopt("work", "b", 1, next_));
}

TEST_F(KeptOrphan, OnlyAWholeAnswerIsServedAfterItsEnd) {
  for (const FinishReason finish : {FinishReason::kDeadline, FinishReason::kQueueTimeout,
                                    FinishReason::kGrammarError, FinishReason::kError}) {
    Orphan(KeptRuns::Part::kWhole)->SendEvent("a", 1, Event(finish));
    EXPECT_FALSE(kept_.Adopt("work", "b", 1, next_)) << FinishReasonName(finish);
    EXPECT_EQ(kept_.num_bytes(), 0);
  }
  for (const FinishReason finish : {FinishReason::kStop, FinishReason::kLength}) {
    Orphan(KeptRuns::Part::kWhole)->SendEvent("a", 1, Event(finish));
    EXPECT_TRUE(kept_.Adopt("work", "b", 1, next_)) << FinishReasonName(finish);
    EXPECT_EQ(kept_.num_bytes(), 0);
  }
}

// A gateway that waited for too long cancels what it was given and submits the request anew.
TEST_F(KeptOrphan, OneThatIsForgottenGivesTheIdOfItsRequestBack) {
  const auto output = Orphan(KeptRuns::Part::kWhole);
  ASSERT_TRUE(kept_.Adopt("work", "b", 1, next_));
  EXPECT_EQ(kept_.SubmittedAs("b"), "a");
  kept_.Forget("a/1");
  EXPECT_EQ(kept_.SubmittedAs("b"), "b");
}

TEST(KeptRuns, ARunThatWasTakenOverIsNotKnownByItsOldName) {
  KeptRuns kept;
  const auto first = std::make_shared<GatewayLink>(nullptr, 1, 2);
  const auto second = std::make_shared<GatewayLink>(nullptr, 1, 3);
  EngineRequest request;
  request.request_id = "a";
  request.work_id = "work";
  std::string replaced;
  const auto output = kept.Keep(request, "a.1", KeptRuns::Part::kWhole, first, &replaced);
  EXPECT_EQ(kept.SubmittedAs("a"), "a");
  EXPECT_TRUE(kept.Orphan(*first, 0).empty());
  ASSERT_TRUE(kept.Adopt("work", "b", 1, second));
  EXPECT_EQ(kept.SubmittedAs("b"), "a");
  EXPECT_EQ(kept.SubmittedAs("a"), "") << "its first gateway may still cancel it";
  EXPECT_EQ(kept.SubmittedAs("c"), "c");
  TokenEvent last;
  last.ids = {1, 2, 3};
  last.finish = FinishReason::kStop;
  output->SendEvent("a", 1, last);
  EXPECT_EQ(kept.SubmittedAs("b"), "b");
  EXPECT_EQ(kept.num_bytes(), 0);
  EXPECT_EQ(kept.num_orphans(), 0);
}

TEST_F(GatewayLoss, ItMayChangeHandsAgain) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  ASSERT_TRUE(second_->Adopt(Request("b"), Listen()).ok());
  second_.reset();
  second_ = Connect();
  ASSERT_TRUE(WaitOrphans(1));
  ASSERT_TRUE(second_->Adopt(Request("c"), out_.Sink()).ok());
  engine_.Send(0, 2, {12}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12}));
}

TEST_F(GatewayLoss, WithoutMemoryForItsTokensARunIsNotKept) {
  WorkerServiceOptions options;
  options.kept.max_bytes = 4;
  Start(options);
  SubmitAndLose();
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled().size() == 1; }));
  EXPECT_EQ(second_->Load().orphans, 0);
}

TEST_F(GatewayLoss, AGatewayThatIsAskedAgainUsesTheRunOfTheLostOne) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(second_));
  Gateway gateway({}, std::move(workers), &clock_);
  ASSERT_TRUE(gateway.Submit(Request("b"), out_.Sink()).ok());
  EXPECT_EQ(gateway.counters().adopted, 1);
  engine_.Send(0, 2, {12}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(engine_.num_taken(), 1u);
}

TEST_F(GatewayLoss, ARunThatGoesOnNeedsNoRoomInTheQueue) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(second_));
  Gateway gateway({.max_queued_requests = 0}, std::move(workers), &clock_);
  TokenCollector other;
  EXPECT_EQ(gateway.Submit(Request("c", "other"), other.Sink()).code(),
            StatusCode::kResourceExhausted);
  ASSERT_TRUE(gateway.Submit(Request("b"), out_.Sink()).ok());
  engine_.Send(0, 2, {12}, FinishReason::kStop);
  EXPECT_EQ(out_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(out_.ids(), (std::vector<int32_t>{10, 11, 12}));
}

// Its gateway is gone for good: nobody but the worker itself can end the run.
TEST_F(GatewayLoss, AWorkerThatDrainsKeepsNothing) {
  Start();
  SubmitAndLose();
  ASSERT_TRUE(WaitOrphans(1));
  EXPECT_TRUE(engine_.cancelled().empty());
  service_->Drain(0);
  EXPECT_TRUE(Eventually([&] { return !engine_.cancelled().empty(); }));
}

}  // namespace
}  // namespace deepinfer
