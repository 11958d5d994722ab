// Hand-offs between two worker services over real sessions: a prompt's worker gives the state to
// the answer's, and whatever goes wrong, both sides are rid of it.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include <cluster.pb.h>
#include "cluster/handshake.h"
#include "cluster/remote_worker.h"
#include "cluster/session.h"
#include "cluster/worker_service.h"
#include "support/eventually.h"
#include "support/scripted_worker.h"
#include "support/self_signed.h"
#include "support/temp_dir.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

std::vector<std::byte> Image(size_t size) {
  std::vector<std::byte> image(size);
  for (size_t i = 0; i < size; ++i) image[i] = static_cast<std::byte>(i * 7 + i / 255);
  return image;
}

// A worker behind its service in this process, and a gateway's link to it.
struct Node {
  Node(WorkerRole role, const std::string& path, WorkerServiceOptions options, const Clock* clock)
      : engine(role), endpoint("unix:" + path) {
    options.report_interval_us = 5'000;
    service = std::make_unique<WorkerService>(options, &engine, clock);
    auto listening = SessionServer::Listen(
        endpoint, [this](Session* session) { service->Serve(session); }, options.security);
    EXPECT_TRUE(listening.ok());
    sessions = *std::move(listening);
    remote = std::make_unique<RemoteWorker>(endpoint, 1, WorkerInfo{}, LinkOptions(options), clock);
    EXPECT_TRUE(remote->WaitReady(std::chrono::seconds(20)));
  }
  ~Node() {
    remote.reset();
    sessions.reset();
    engine.EndAll();
    service.reset();
  }
  static RemoteWorkerOptions LinkOptions(const WorkerServiceOptions& options) {
    RemoteWorkerOptions link;
    link.security = options.security;
    return link;
  }
  HandOffCounters counters() const { return remote->Load().hand_offs; }

  ScriptedWorker engine;
  const std::string endpoint;
  std::unique_ptr<WorkerService> service;
  std::unique_ptr<SessionServer> sessions;
  std::unique_ptr<RemoteWorker> remote;
};

class HandOffTest : public ::testing::Test {
 protected:
  void Start(WorkerServiceOptions options = {}) {
    prefill_ = std::make_unique<Node>(WorkerRole::kPrefill, dir_.File("p"), options, &clock_);
    decode_ = std::make_unique<Node>(WorkerRole::kDecode, dir_.File("d"), options, &clock_);
  }
  static EngineRequest Request(uint32_t attempt = 1) {
    EngineRequest request;
    request.request_id = "r";
    request.attempt = attempt;
    request.prompt_ids = {5, 6, 7};
    request.queue_deadline_us = 1;
    return request;
  }
  void SubmitBoth() {
    ASSERT_TRUE(decode_->remote->SubmitDecode(Request(), answer_.Sink()).ok());
    ASSERT_TRUE(prefill_->remote->SubmitPrefill(Request(), decode_->endpoint, prompt_.Sink()).ok());
    ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 1; }));
    EXPECT_TRUE(prefill_->engine.request(0).hand_off);
  }
  void FinishPrompt(size_t image_bytes) {
    prefill_->engine.Send(0, 0, {10}, FinishReason::kHandedOff, OkStatus(), Image(image_bytes));
  }
  // Every side has let go of everything it held.
  void ExpectNothingHeld() {
    EXPECT_TRUE(Eventually([&] {
      const HandOffCounters p = prefill_->counters();
      return p.pins_acquired > 0 && p.pins_acquired == p.pins_released;
    }));
    EXPECT_TRUE(Eventually([&] {
      const HandOffCounters d = decode_->counters();
      return d.tickets_granted == d.tickets_released;
    }));
    EXPECT_TRUE(Eventually([&] { return decode_->remote->Load().running == 0; }))
        << "nothing waits for a state";
  }

  TempDir dir_;
  SteadyClock clock_;
  TokenCollector prompt_, answer_;
  std::unique_ptr<Node> prefill_, decode_;
};

class HandOffWays : public HandOffTest, public ::testing::WithParamInterface<HandOffTransport> {};

TEST_P(HandOffWays, TheAnswerGoesOnFromTheStateOfThePrompt) {
  WorkerServiceOptions options;
  options.transport = GetParam();
  Start(options);
  SubmitBoth();
  EXPECT_TRUE(Eventually([&] { return decode_->remote->Load().running == 1; }))
      << "an answer to come counts as load";
  FinishPrompt(3'000'000);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  EXPECT_EQ(prompt_.ids(), std::vector<int32_t>{10}) << "the client need not wait for the move";
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  const EngineRequest taken = decode_->engine.request(0);
  ASSERT_TRUE(taken.resume.has_value());
  EXPECT_EQ(taken.resume->ids, std::vector<int32_t>{10});
  EXPECT_EQ(taken.resume->image, Image(3'000'000));
  EXPECT_EQ(taken.queue_deadline_us, 0) << "it does not wait for its turn any more";
  EXPECT_FALSE(taken.hand_off);
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(answer_.ids(), (std::vector<int32_t>{10, 11}));
  ExpectNothingHeld();
  EXPECT_EQ(prefill_->counters().committed, 1);
  EXPECT_EQ(prefill_->counters().bytes_sent, 3'000'000);
  EXPECT_EQ(decode_->counters().bytes_received, 3'000'000);
}

std::string NameOfWay(const ::testing::TestParamInfo<HandOffTransport>& way) {
  constexpr const char* kNames[] = {"Auto", "SharedMemory", "Tcp"};
  return kNames[static_cast<size_t>(way.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, HandOffWays,
                         ::testing::Values(HandOffTransport::kAuto, HandOffTransport::kSharedMemory,
                                           HandOffTransport::kTcp),
                         NameOfWay);

// Without shared memory the state goes over the session too, where nobody can read it.
TEST_F(HandOffTest, SecurePairsMoveStatesAndLetNobodyElseIn) {
  WorkerServiceOptions options;
  // The authority signed for another name too.
  const SecurityPtr elsewhere = SelfSigned("DNS:elsewhere");
  SessionSecurity own = *SelfSigned();
  SessionSecurity other_name = *elsewhere;
  other_name.authority = own.certificate;
  own.authority += elsewhere->authority;
  options.security = std::make_shared<SessionSecurity>(own);
  options.transport = HandOffTransport::kTcp;
  options.landing.window_bytes = 2 * kExtentBytes;
  Start(options);
  SubmitBoth();
  FinishPrompt(5'000'000);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  EXPECT_EQ(decode_->engine.request(0).resume->image, Image(5'000'000));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
  for (const SecurityPtr& stranger :
       {SecurityPtr(), SelfSigned(), SecurityPtr(std::make_shared<SessionSecurity>(other_name))}) {
    auto dialled = DialSession(decode_->endpoint, std::chrono::milliseconds(500), stranger);
    if (!dialled.ok()) continue;
    (*dialled)->Send(MakeHello(5, "operator", {}));
    wire::Message answer;
    EXPECT_FALSE((*dialled)->Receive(&answer));
  }
}

TEST_F(HandOffTest, ASecondOneUsesTheSameSession) {
  Start();
  SubmitBoth();
  FinishPrompt(1000);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  TokenCollector prompt, answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(Request(2), answer.Sink()).ok());
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(Request(2), decode_->endpoint, prompt.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 2; }));
  prefill_->engine.Send(1, 0, {20}, FinishReason::kHandedOff, OkStatus(), Image(500));
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 2; }));
  EXPECT_EQ(decode_->engine.request(1).resume->ids, std::vector<int32_t>{20});
  decode_->engine.Send(1, 1, {21}, FinishReason::kStop);
  EXPECT_EQ(answer.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

TEST_F(HandOffTest, AnAnswerThatIsNotTakenIsLostAndMayRunElsewhere) {
  Start();
  SubmitBoth();
  decode_->engine.Refuse(ResourceExhausted("full"));
  FinishPrompt(1000);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(answer_.Wait().status.code(), StatusCode::kUnavailable);
  ExpectNothingHeld();
  EXPECT_EQ(prefill_->counters().failed, 1);
}

TEST_F(HandOffTest, AStateThatNobodyWaitsForIsNotTaken) {
  Start();
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(Request(), decode_->endpoint, prompt_.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 1; }));
  FinishPrompt(1000);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(decode_->counters().tickets_granted, 0);
  ExpectNothingHeld();
}

TEST_F(HandOffTest, AWorkerThatIsGoneFailsThePromptAtOnce) {
  Start();
  SubmitBoth();
  decode_->sessions->Shutdown();
  EXPECT_EQ(answer_.Wait().status.code(), StatusCode::kUnavailable);
  FinishPrompt(1000);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(prompt_.ids(), std::vector<int32_t>{10}) << "what was computed is not lost";
}

TEST_F(HandOffTest, CancelEndsBothSidesBeforeTheState) {
  Start();
  SubmitBoth();
  decode_->remote->Cancel("r");
  prefill_->remote->Cancel("r");
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kCancelled);
  // Its engine had the last token ready when the word came.
  ASSERT_TRUE(Eventually([&] { return !prefill_->engine.cancelled().empty(); }));
  FinishPrompt(1000);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(prefill_->counters().pins_acquired, 0);
  EXPECT_EQ(decode_->counters().tickets_granted, 0);
}

TEST_F(HandOffTest, ARoleMayChangeWhileTheWorkerRuns) {
  Start();
  SubmitBoth();
  ASSERT_TRUE(decode_->remote->AskRole(WorkerRole::kPrefill).ok());
  EXPECT_TRUE(Eventually([&] { return decode_->remote->info().role == WorkerRole::kPrefill; }));
  EXPECT_EQ(prefill_->remote->info().role, WorkerRole::kPrefill);
  FinishPrompt(1000);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }))
      << "what was agreed before goes on";
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
}

TEST_F(HandOffTest, AWorkerThatDrainsSendsAwayWhatHasNoStateYet) {
  Start();
  SubmitBoth();
  decode_->service->Drain(clock_.NowUs() + 1'000'000);
  EXPECT_EQ(answer_.Wait().status.code(), StatusCode::kUnavailable);
}

// A worker that was granted a ticket and then stands still: the lease ends, the request goes on
// elsewhere, and what it sends later has no effect.
class SlowSender : public HandOffTest {
 protected:
  void Begin(int64_t lease_us) {
    options_.landing.lease_us = lease_us;
    Start(options_);
    ASSERT_TRUE(decode_->remote->SubmitDecode(Request(), answer_.Sink()).ok());
    auto dialled = DialSession(decode_->endpoint, std::chrono::seconds(20));
    ASSERT_TRUE(dialled.ok());
    session_ = *std::move(dialled);
    session_->Send(MakeHello(kSelf, "prefill", prefill_->engine.info()));
    ASSERT_TRUE(session_->Receive(&message_));
    decode_incarnation_ = message_.sender();
  }
  void Send(wire::Message message) {
    message.set_sender(kSelf);
    message.set_target(decode_incarnation_);
    session_->Send(std::move(message));
  }
  // The ticket of the request, which the worker may have yet to hear of.
  wire::Ticket ReserveKnown() {
    wire::Ticket ticket;
    EXPECT_TRUE(Eventually([&] {
      ticket = Reserve(1, 1000);
      return !ticket.try_again();
    }));
    EXPECT_EQ(ticket.refused(), "");
    return ticket;
  }
  wire::Ticket Reserve(uint32_t attempt, int64_t size_bytes, const std::string& id = "r") {
    wire::Message message;
    message.mutable_reserve()->set_request_id(id);
    message.mutable_reserve()->set_attempt(attempt);
    message.mutable_reserve()->set_size_bytes(size_bytes);
    Send(std::move(message));
    EXPECT_TRUE(session_->Receive(&message_));
    EXPECT_TRUE(message_.has_ticket());
    return message_.ticket();
  }

  WorkerServiceOptions options_;
  static constexpr uint64_t kSelf = 77;
  static constexpr int64_t kLongLeaseUs = 60'000'000;
  std::unique_ptr<Session> session_;
  wire::Message message_;
  uint64_t decode_incarnation_ = 0;
};

TEST_F(SlowSender, LosesItsLeaseAndTheRequestGoesOnElsewhere) {
  Begin(50'000);
  const wire::Ticket ticket = ReserveKnown();
  EXPECT_EQ(answer_.Wait().status.code(), StatusCode::kUnavailable);
  wire::Message commit;
  commit.mutable_commit()->set_ticket(ticket.ticket());
  commit.mutable_commit()->set_size_bytes(1000);
  Send(std::move(commit));
  ASSERT_TRUE(session_->Receive(&message_));
  EXPECT_NE(message_.committed().refused(), "");
  EXPECT_TRUE(Eventually([&] { return decode_->counters().tickets_released == 1; }));
}

TEST_F(SlowSender, CannotMakeStateThatNobodyAskedFor) {
  Begin(kLongLeaseUs);
  EXPECT_NE(Reserve(2, 1000).refused(), "") << "another attempt";
  EXPECT_NE(Reserve(1, -1).refused(), "");
  EXPECT_NE(Reserve(1, int64_t{1} << 50).refused(), "");
  wire::Message extent;
  extent.mutable_extent()->set_ticket(12345);
  extent.mutable_extent()->set_size_bytes(10);
  Send(std::move(extent));
  ASSERT_TRUE(session_->Receive(&message_));
  EXPECT_NE(message_.committed().refused(), "");
  EXPECT_EQ(decode_->counters().tickets_granted, 0);
}

TEST_F(SlowSender, IsAskedToComeAgainWhileThereIsNoRoom) {
  options_.landing.max_bytes = 1500;
  Begin(kLongLeaseUs);
  (void)ReserveKnown();
  EngineRequest other = Request();
  other.request_id = "q";
  TokenCollector answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(std::move(other), answer.Sink()).ok());
  wire::Ticket ticket;
  EXPECT_TRUE(Eventually([&] {
    ticket = Reserve(1, 1000, "q");
    return ticket.refused() == "transfers on the way hold all landing memory";
  }));
  EXPECT_TRUE(ticket.try_again());
  EXPECT_EQ(Reserve(1, 400, "q").refused(), "") << "this one fits";
  decode_->remote->Cancel("q");
  EXPECT_EQ(answer.Wait().finish, FinishReason::kCancelled);
}

TEST_F(SlowSender, ThatIsLostGivesItsLandingBackAndAnotherMayCome) {
  Begin(kLongLeaseUs);
  (void)ReserveKnown();
  session_.reset();
  EXPECT_TRUE(Eventually([&] {
    const HandOffCounters d = decode_->counters();
    return d.tickets_granted == 1 && d.tickets_released == 1;
  }));
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(Request(), decode_->endpoint, prompt_.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 1; }));
  FinishPrompt(1000);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

class BothPending : public SlowSender, public ::testing::WithParamInterface<bool> {};

// One request waits for the rest of its state, which holds the landing memory that the state of
// another, sent by a real worker, waits for.
TEST_P(BothPending, E10_AbortWithAReceiveAndASendPending) {
  options_.landing.max_bytes = 1500;
  Begin(kLongLeaseUs);
  (void)ReserveKnown();
  // Holds the rest to the end: the send stays pending when the receive is gone.
  EngineRequest filler = Request();
  filler.request_id = "s";
  TokenCollector filler_answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(filler, filler_answer.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return Reserve(1, 400, "s").refused().empty(); }));
  EngineRequest other = Request();
  other.request_id = "q";
  TokenCollector other_answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(other, other_answer.Sink()).ok());
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(other, decode_->endpoint, prompt_.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 1; }));
  FinishPrompt(1400);
  ASSERT_TRUE(Eventually([&] { return prefill_->counters().pins_acquired == 1; }));
  EXPECT_EQ(prefill_->counters().pins_released, 0);
  EXPECT_EQ(decode_->counters().tickets_released, 0);

  const auto cancel_receive = [&] {
    decode_->remote->Cancel("r");
    EXPECT_EQ(answer_.Wait().finish, FinishReason::kCancelled);
  };
  const auto cancel_send = [&] {
    prefill_->remote->Cancel("q");
    decode_->remote->Cancel("q");
    EXPECT_EQ(other_answer.Wait().finish, FinishReason::kCancelled);
  };
  if (GetParam()) {
    cancel_receive();
    cancel_send();
  } else {
    cancel_send();
    cancel_receive();
  }
  decode_->remote->Cancel("s");
  EXPECT_EQ(filler_answer.Wait().finish, FinishReason::kCancelled);
  session_.reset();
  ExpectNothingHeld();
  EXPECT_EQ(decode_->engine.num_taken(), 0);
}

INSTANTIATE_TEST_SUITE_P(Orders, BothPending, ::testing::Bool());

}  // namespace
}  // namespace deepinfer
