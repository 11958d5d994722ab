// Hand-offs with a peer that the test plays: a worker that takes states, and one that sends them
// too slowly, at the wrong time or not at all.

#include <array>
#include <thread>

#include "unit/cluster/hand_off_fixture.h"

namespace deepinfer {
namespace {

// A worker that takes states, played by the test: what it says, and how often.
class PlayedDecoder : public HandOffTest {
 protected:
  void Play(std::function<void(const wire::Message&)> on_message) {
    Start();
    auto listening = SessionServer::Listen("unix:" + dir_.File("x"), [=, this](Session* session) {
      wire::Message message;
      ASSERT_TRUE(session->Receive(&message));
      session_ = session;
      peer_ = message.sender();
      Say(MakeHello(kSelf, "decode", decode_->engine.info()));
      while (session->Receive(&message)) on_message(message);
    });
    ASSERT_TRUE(listening.ok());
    played_ = *std::move(listening);
    ASSERT_TRUE(
        prefill_->remote->SubmitPrefill(Request(), "unix:" + dir_.File("x"), prompt_.Sink()).ok());
    ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 1; }));
  }
  void TearDown() override {
    prefill_.reset();
    played_.reset();
  }
  void Say(wire::Message message) {
    message.set_sender(kSelf);
    message.set_target(peer_);
    session_->Send(std::move(message));
  }
  wire::Message Ticket(uint64_t number, const std::string& id = "r", uint32_t attempt = 1) {
    wire::Message message;
    wire::Ticket* ticket = message.mutable_ticket();
    ticket->set_request_id(id);
    ticket->set_attempt(attempt);
    ticket->set_ticket(number);
    ticket->set_lease_us(4000);
    ticket->set_credit_bytes(16 * kExtentBytes);
    if (window_.bytes().empty()) window_ = *SharedWindow::Create(16 * kExtentBytes);
    ticket->set_shared_memory(window_.address());
    return message;
  }
  static wire::Message Ack(uint64_t ticket, int64_t offset, bool corrupt) {
    wire::Message message;
    message.mutable_extent_ack()->set_ticket(ticket);
    message.mutable_extent_ack()->set_offset(offset);
    message.mutable_extent_ack()->set_corrupt(corrupt);
    return message;
  }
  static wire::Message Committed(uint64_t ticket, const std::string& refused = "") {
    wire::Message message;
    message.mutable_committed()->set_ticket(ticket);
    message.mutable_committed()->set_refused(refused);
    return message;
  }

  static constexpr uint64_t kSelf = 99;
  SharedWindow window_;
  Session* session_ = nullptr;
  uint64_t peer_ = 0;
  std::unique_ptr<SessionServer> played_;
};

TEST_F(PlayedDecoder, HearsThatAPromptStillRuns) {
  std::atomic<int> renewals{0};
  Play([&](const wire::Message& message) {
    if (message.has_reserve()) Say(Ticket(7));
    if (message.has_extent()) Say(Ack(7, message.extent().offset(), false));
    if (message.has_renew() && message.renew().ticket() == 7) ++renewals;
    if (message.has_commit()) Say(Committed(7));
  });
  std::vector<std::byte> block(kBlockBytes);
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, nullptr, 128, 0});
  EXPECT_TRUE(Eventually([&] { return renewals >= 3; }));
  prefill_->engine.SendImage(0, Image(kSlotBytes), 128);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
}

// Whoever waits for a prompt that stands still must be able to give it up.
TEST_F(PlayedDecoder, HearsNothingOfAPromptWhileItsEngineStandsStill) {
  std::atomic<int> renewals{0};
  Play([&](const wire::Message& message) {
    if (message.has_reserve()) Say(Ticket(7));
    if (message.has_extent()) Say(Ack(7, message.extent().offset(), false));
    if (message.has_renew()) ++renewals;
    if (message.has_commit()) Say(Committed(7));
  });
  std::vector<std::byte> block(kBlockBytes);
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, nullptr, 128, 0});
  EXPECT_TRUE(Eventually([&] { return renewals >= 3; }));
  prefill_->engine.SetReady(false);
  // Some may be on their way; then there is none in the time of fifty.
  int before = 0;
  EXPECT_TRUE(Eventually([&] {
    before = renewals;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return renewals == before;
  }));
  prefill_->engine.SetReady(true);
  EXPECT_TRUE(Eventually([&] { return renewals > before; }));
  prefill_->engine.SendImage(0, Image(kSlotBytes), 128);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
}

// The rest of the prompt would be computed for nobody.
TEST_F(PlayedDecoder, ThatRefusesEndsAPromptThatStillRuns) {
  Play([&](const wire::Message& message) {
    if (!message.has_reserve()) return;
    wire::Message no = Ticket(0);
    no.mutable_ticket()->set_refused("by the test");
    Say(std::move(no));
  });
  std::vector<std::byte> block(kBlockBytes);
  auto pin = std::make_shared<int>(0);
  const std::weak_ptr<int> pinned = pin;
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, std::move(pin), 128, 0});
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.cancelled().size() == 1; }));
  EXPECT_EQ(prefill_->engine.cancelled()[0], RunName("r", 1));
  EXPECT_TRUE(pinned.expired());
  prefill_->engine.Send(0, 0, {}, FinishReason::kCancelled);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kError);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable) << "it may run elsewhere";
}

// Takes sessions and says nothing.
class SilentDecoder : public HandOffTest {
 protected:
  void Start(std::chrono::milliseconds greet_limit) {
    WorkerServiceOptions options;
    options.sender.greet_limit = greet_limit;
    HandOffTest::Start(options);
    auto listening = SessionServer::Listen("unix:" + dir_.File("x"), [this](Session* session) {
      ++num_sessions_;
      wire::Message message;
      while (session->Receive(&message)) continue;
    });
    ASSERT_TRUE(listening.ok());
    silent_ = *std::move(listening);
    for (const char* id : {"a", "b"}) {
      EngineRequest request = Request();
      request.request_id = id;
      TokenCollector& out = outs_[num_prompts_];
      ASSERT_TRUE(
          prefill_->remote->SubmitPrefill(request, "unix:" + dir_.File("x"), out.Sink()).ok());
      ++num_prompts_;
      ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == num_prompts_; }));
    }
  }
  void OfferBlock(size_t i) {
    auto pin = std::make_shared<int>(0);
    pins_[i] = pin;
    prefill_->engine.request(i).state_sink->OnBlocks({0, {block_.data()}, std::move(pin), 128, 0});
  }
  void TearDown() override {
    prefill_.reset();
    silent_.reset();
  }

  std::atomic<int> num_sessions_{0};
  size_t num_prompts_ = 0;
  std::vector<std::byte> block_ = std::vector<std::byte>(kBlockBytes);
  std::array<std::weak_ptr<int>, 2> pins_;
  std::array<TokenCollector, 2> outs_;
  std::unique_ptr<SessionServer> silent_;
};

TEST_F(SilentDecoder, CostsAllThatWaitForItTheTimeOfOne) {
  Start(std::chrono::milliseconds(300));
  OfferBlock(0);
  ASSERT_TRUE(Eventually([&] { return num_sessions_ == 1; }));
  OfferBlock(1);
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.cancelled().size() == 2; }));
  EXPECT_EQ(num_sessions_, 1);
  EXPECT_TRUE(pins_[0].expired() && pins_[1].expired());
}

TEST_F(SilentDecoder, HoldsNobodyWhoIsCancelled) {
  Start(std::chrono::minutes(10));
  OfferBlock(0);
  ASSERT_TRUE(Eventually([&] { return num_sessions_ == 1; }));
  OfferBlock(1);
  prefill_->remote->Cancel("b");
  EXPECT_TRUE(Eventually([&] { return pins_[1].expired(); })) << "one that waits for the dialler";
  OfferBlock(1);  // has no effect
  prefill_->remote->Cancel("a");
  EXPECT_TRUE(Eventually([&] { return pins_[0].expired(); })) << "the dialler itself";
  EXPECT_EQ(num_sessions_, 1);
}

class FullDecoder : public PlayedDecoder {
 protected:
  wire::Message NoRoom() {
    wire::Message message = Ticket(0);
    message.mutable_ticket()->set_refused("no room");
    message.mutable_ticket()->set_try_again(true);
    message.mutable_ticket()->set_no_room(true);
    return message;
  }
};

TEST_F(FullDecoder, IsAskedAgainUntilOthersHaveMadeRoom) {
  std::atomic<int> reserves{0};
  Play([&](const wire::Message& message) {
    if (message.has_reserve()) Say(++reserves < 3 ? NoRoom() : Ticket(7));
    if (message.has_extent()) Say(Ack(7, message.extent().offset(), false));
    if (message.has_commit()) Say(Committed(7));
  });
  std::vector<std::byte> block(kBlockBytes);
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, nullptr, 128, 0});
  EXPECT_TRUE(Eventually([&] { return reserves == 3; }));
  prefill_->engine.SendImage(0, Image(kSlotBytes), 128);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
}

// Its blocks are the memory that it waits for.
TEST_F(FullDecoder, DoesNotKeepTheBlocksOfAParkedPrompt) {
  std::atomic<int> reserves{0};
  Play([&](const wire::Message& message) {
    if (!message.has_reserve()) return;
    ++reserves;
    Say(NoRoom());
  });
  std::vector<std::byte> block(kBlockBytes);
  auto pin = std::make_shared<int>(0);
  const std::weak_ptr<int> pinned = pin;
  const auto sink = prefill_->engine.request(0).state_sink;
  sink->OnBlocks({0, {block.data()}, std::move(pin), 128, 0});
  EXPECT_TRUE(Eventually([&] { return reserves > 1; }));
  EXPECT_FALSE(pinned.expired());
  sink->OnParked();
  EXPECT_TRUE(Eventually([&] { return pinned.expired(); }));
  prefill_->engine.SendImage(0, Image(kSlotBytes), 128);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable) << "and it runs elsewhere";
}

TEST_F(FullDecoder, IsAskedAgainForAPromptThatHasItsMemoryBack) {
  std::atomic<int> reserves{0};
  Play([&](const wire::Message& message) {
    if (message.has_reserve()) Say(++reserves < 3 ? NoRoom() : Ticket(7));
    if (message.has_extent()) Say(Ack(7, message.extent().offset(), false));
    if (message.has_commit()) Say(Committed(7));
  });
  prefill_->engine.request(0).state_sink->OnParked();
  prefill_->engine.SendImage(0, Image(kSlotBytes + kBlockBytes), 128);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  EXPECT_EQ(reserves, 3);
}

TEST_F(PlayedDecoder, ThatGrantsAnotherProfileGetsNothing) {
  std::atomic<int> extents{0};
  Play([&](const wire::Message& message) {
    wire::Message ticket = Ticket(7);
    ticket.mutable_ticket()->set_profile(wire::TAIL);
    if (message.has_reserve()) Say(std::move(ticket));
    extents += message.has_extent();
  });
  prefill_->engine.SendImage(0, Image(1000), 0);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(extents, 0);
}

// Words about other hand-offs, of other tickets, twice, and too late.
TEST_F(PlayedDecoder, MaySayAnythingAtAnyTime) {
  std::atomic<int> extents{0};
  Play([&](const wire::Message& message) {
    Say(Ticket(5, "stranger"));
    Say(Ticket(6, "r", 9));
    Say(Committed(5, "no"));
    Say(Committed(12345, "no"));
    Say(Ack(12345, 0, true));
    if (message.has_reserve()) {
      Say(Ticket(7));
      Say(Ack(7, 0, false));  // of what was not sent
    }
    if (message.has_extent()) {
      ++extents;
      const int64_t offset = message.extent().offset();
      Say(Ack(7, offset, false));
      Say(Ack(7, offset, true));
      Say(Ack(7, offset + 1, true));
      Say(Ack(7, -1, false));
    }
    if (message.has_commit()) {
      EXPECT_EQ(message.commit().ticket(), 7u);
      Say(Committed(7));
      Say(Committed(7, "no"));
    }
  });
  prefill_->engine.SendImage(0, Image(3 * kExtentBytes), 0);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  EXPECT_EQ(extents, 3);
  EXPECT_EQ(prefill_->counters().failed, 0);
}

TEST_F(PlayedDecoder, ThatRefusesBeforeTheEndEndsIt) {
  Play([&](const wire::Message& message) {
    if (message.has_reserve()) Say(Ticket(7));
    if (message.has_extent()) Say(Committed(7, "an extent was refused"));
  });
  prefill_->engine.SendImage(0, Image(3 * kExtentBytes), 0);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return prefill_->counters().failed == 1; }));
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
    wire::Region* region = message.mutable_reserve()->add_regions();
    region->set_size_bytes(size_bytes);
    region->set_unit_bytes(std::min<int64_t>(size_bytes, kExtentBytes));
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
  // Else the next one waits for the landing of the first.
  ASSERT_TRUE(Eventually([&] {
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
