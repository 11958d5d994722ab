// Hand-offs between two worker services over real sessions: a prompt's worker gives the state to
// the answer's, and whatever goes wrong, both sides are rid of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include <cluster.pb.h>
#include "cluster/handshake.h"
#include "cluster/remote_worker.h"
#include "cluster/session.h"
#include "cluster/worker_service.h"
#include "engine/state_image.h"
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

constexpr int64_t kSlotBytes = 5000;
constexpr size_t kBlockBytes = 3000;

// A worker behind its service in this process, and a gateway's link to it.
struct Node {
  Node(WorkerRole role, const std::string& path, WorkerServiceOptions options, const Clock* clock,
       const std::string& kv_root, bool encoder_only = false)
      : engine(role), endpoint("unix:" + path) {
    engine.SetLayout(kSlotBytes, {1000, 2000}, kv_root);
    if (encoder_only) engine.SetEncoderOnly();
    options.report_interval_us = 5'000;
    service = std::make_unique<WorkerService>(options, &engine, clock);
    auto listening = SessionServer::Listen(
        endpoint, [this](Session* session) { service->Serve(session); }, options.sender.security);
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
    link.security = options.sender.security;
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
    options.profile = profile_;
    prefill_ = std::make_unique<Node>(WorkerRole::kPrefill, dir_.File("p"), options, &clock_,
                                      prefill_root_);
    decode_ =
        std::make_unique<Node>(WorkerRole::kDecode, dir_.File("d"), options, &clock_, decode_root_);
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
    EXPECT_EQ(prefill_->engine.request(0).hand_off, profile_);
  }
  void FinishPrompt(size_t image_bytes, int32_t positions = 0) {
    prefill_->engine.SendImage(0, Image(image_bytes), positions);
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
  HandOffProfile profile_ = HandOffProfile::kFull;
  std::string prefill_root_, decode_root_;
  std::unique_ptr<Node> prefill_, decode_;
};

class HandOffWays : public HandOffTest, public ::testing::WithParamInterface<HandOffTransport> {};

TEST_P(HandOffWays, TheAnswerGoesOnFromTheStateOfThePrompt) {
  WorkerServiceOptions options;
  options.sender.transport = GetParam();
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
  EXPECT_EQ(taken.hand_off, HandOffProfile::kNone);
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
  options.sender.security = std::make_shared<SessionSecurity>(own);
  options.sender.transport = HandOffTransport::kTcp;
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
  EXPECT_EQ(decode_->service->num_worker_sessions(), 1u);
}

TEST_F(HandOffTest, AConnectionThatNobodyUsesIsClosedAndMadeAgain) {
  WorkerServiceOptions options;
  options.sender.idle_connection_us = 1;
  Start(options);
  for (uint32_t attempt = 1; attempt <= 2; ++attempt) {
    TokenCollector prompt, answer;
    ASSERT_TRUE(decode_->remote->SubmitDecode(Request(attempt), answer.Sink()).ok());
    ASSERT_TRUE(
        prefill_->remote->SubmitPrefill(Request(attempt), decode_->endpoint, prompt.Sink()).ok());
    ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == attempt; }));
    prefill_->engine.Send(attempt - 1, 0, {10}, FinishReason::kHandedOff, OkStatus(), Image(1000));
    ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == attempt; }));
    decode_->engine.Send(attempt - 1, 1, {11}, FinishReason::kStop);
    EXPECT_EQ(answer.Wait().finish, FinishReason::kStop);
    EXPECT_TRUE(Eventually([&] { return decode_->service->num_open_worker_sessions() == 0; }));
    EXPECT_EQ(decode_->service->num_worker_sessions(), attempt);
  }
  ExpectNothingHeld();
}

TEST_F(HandOffTest, HandOffsToOneWorkerDoNotWaitForEachOther) {
  Start();
  SubmitBoth();
  const auto pin = std::make_shared<int>(0);
  std::vector<std::byte> block(kBlockBytes);
  // The first prompt runs on; the second is done long before it.
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, pin, 200, 0});
  EngineRequest other = Request();
  other.request_id = "q";
  TokenCollector prompt, answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(other, answer.Sink()).ok());
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(other, decode_->endpoint, prompt.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 2; }));
  prefill_->engine.Send(1, 0, {10}, FinishReason::kHandedOff, OkStatus(), Image(1000));
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer.Wait().finish, FinishReason::kStop);
  FinishPrompt(kSlotBytes + kBlockBytes, 200);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 2; }));
  decode_->engine.Send(1, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

TEST_F(HandOffTest, BlocksArriveWhileThePromptRuns) {
  Start();
  SubmitBoth();
  std::vector<std::vector<std::byte>> blocks;
  for (uint8_t i = 0; i < 4; ++i) {
    blocks.emplace_back(Image(kBlockBytes));
    for (std::byte& b : blocks.back()) b ^= std::byte{i};
  }
  auto pin = std::make_shared<int>(0);
  const std::weak_ptr<int> pinned = pin;
  const auto sink = prefill_->engine.request(0).state_sink;
  sink->OnBlocks({0, {blocks[0].data()}, pin, 400, 0});
  sink->OnBlocks({1, {blocks[1].data(), blocks[2].data()}, std::move(pin), 400, 0});
  EXPECT_TRUE(Eventually(
      [&] { return decode_->counters().bytes_received == static_cast<int64_t>(3 * kBlockBytes); }));
  EXPECT_FALSE(pinned.expired()) << "until the other side has the state";
  EXPECT_EQ(decode_->engine.num_taken(), 0u);

  std::vector<std::byte> rest = Image(kSlotBytes);
  rest.insert(rest.end(), blocks[3].begin(), blocks[3].end());
  prefill_->engine.SendImage(0, rest, 400);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  const EngineRequest taken = decode_->engine.request(0);
  EXPECT_EQ(taken.resume->positions, 400);
  const StateImageLayout layout(kSlotBytes, {1000, 2000}, 4);
  ASSERT_EQ(static_cast<int64_t>(taken.resume->image.size()), layout.size_bytes());
  for (int32_t i = 0; i < 4; ++i) {
    std::vector<std::byte> block(kBlockBytes);
    layout.GetBlock(i, taken.resume->image, block.data());
    EXPECT_EQ(block, blocks[static_cast<size_t>(i)]) << i;
  }
  EXPECT_TRUE(std::equal(rest.begin(), rest.begin() + kSlotBytes, taken.resume->image.begin()));
  EXPECT_TRUE(Eventually([&] { return pinned.expired(); }));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

TEST_F(HandOffTest, APromptThatStillRunsLeavesHalfOfTheMemoryToOthers) {
  WorkerServiceOptions options;
  options.landing.max_bytes = 10'000;
  Start(options);
  SubmitBoth();
  std::vector<std::byte> block(kBlockBytes);
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, nullptr, 128, 0});
  EXPECT_TRUE(Eventually([&] { return prefill_->counters().pins_acquired == 1; }));
  EngineRequest other = Request();
  other.request_id = "q";
  TokenCollector prompt, answer;
  ASSERT_TRUE(decode_->remote->SubmitDecode(other, answer.Sink()).ok());
  ASSERT_TRUE(prefill_->remote->SubmitPrefill(other, decode_->endpoint, prompt.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return prefill_->engine.num_taken() == 2; }));
  prefill_->engine.Send(1, 0, {10}, FinishReason::kHandedOff, OkStatus(), Image(10'000));
  EXPECT_EQ(prompt.Wait().finish, FinishReason::kHandedOff);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer.Wait().finish, FinishReason::kStop);
  FinishPrompt(kSlotBytes, 128);
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 2; }));
  decode_->engine.Send(1, 1, {11}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

TEST(Handshake, WorkersWithAnotherDecoderTailDoNotPair) {
  WorkerInfo own, other;
  other.full_decoder_tail = true;
  const auto why = [&](const std::string& role) {
    return WhyRefused(MakeHello(1, role, other).hello(), own);
  };
  EXPECT_EQ(why("prefill"), "decoder tails differ: full and compact");
  EXPECT_EQ(why("gateway"), "") << "it moves no states";
  EXPECT_TRUE(InfoOfHello(MakeHello(1, "prefill", other)).full_decoder_tail);
  other.full_decoder_tail = false;
  EXPECT_EQ(why("prefill"), "");
}

TEST(HandOffSender, ForgetsAHandOffBeforeItSaysThatItIsOver) {
  SteadyClock clock;
  HandOffSender sender({}, {}, &clock);
  const auto transfer = sender.Open({"r", 1, "unix:nowhere", HandOffProfile::kFull, false});
  transfer->Stop(Cancelled("by the test"));
  int64_t num_owners = 0;
  transfer->Complete(TokenEvent(), [&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    num_owners = transfer.use_count();
  });
  EXPECT_EQ(num_owners, 1) << "the sender may be gone by then";
}

TEST_F(HandOffTest, APromptThatFailsLetsGoOfWhatItOffered) {
  Start();
  SubmitBoth();
  std::vector<std::byte> block(kBlockBytes);
  auto pin = std::make_shared<int>(0);
  const std::weak_ptr<int> pinned = pin;
  prefill_->engine.request(0).state_sink->OnBlocks({0, {block.data()}, std::move(pin), 200, 0});
  EXPECT_TRUE(Eventually([&] { return decode_->counters().tickets_granted == 1; }));
  prefill_->engine.Lose(0);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return pinned.expired(); }));
  EXPECT_TRUE(Eventually([&] { return decode_->counters().tickets_released == 1; }));
  EXPECT_EQ(decode_->remote->Load().running, 1) << "its gateway decides what becomes of it";
  decode_->remote->Cancel("r");
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kCancelled);
  ExpectNothingHeld();
}

TEST_F(HandOffTest, TheFirstTokenMayBeTheOthers) {
  profile_ = HandOffProfile::kTail;
  Start();
  SubmitBoth();
  prefill_->engine.SendImage(0, Image(1000), 0, {});
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  EXPECT_TRUE(prompt_.ids().empty());
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  const EngineRequest taken = decode_->engine.request(0);
  EXPECT_TRUE(taken.resume->ids.empty());
  EXPECT_EQ(taken.resume->image, Image(1000));
  decode_->engine.Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  EXPECT_EQ(answer_.ids(), std::vector<int32_t>{10});
  ExpectNothingHeld();
}

TEST_F(HandOffTest, APromptThatLeavesNothingBeginsAtTheOther) {
  profile_ = HandOffProfile::kTail;
  Start();
  SubmitBoth();
  prefill_->engine.SendImage(0, {}, 0, {});
  EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
  ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
  EXPECT_FALSE(decode_->engine.request(0).resume.has_value());
  decode_->engine.Send(0, 0, {10}, FinishReason::kStop);
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
  ExpectNothingHeld();
}

class SharedStore : public HandOffTest {
 protected:
  void StartWithRoots(const std::string& p, const std::string& d,
                      const WorkerServiceOptions& options = {}) {
    prefill_root_ = p, decode_root_ = d;
    Start(options);
  }
  void ExpectTakenFromStore() {
    EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
    ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
    const EngineRequest taken = decode_->engine.request(0);
    EXPECT_EQ(taken.resume->ids, std::vector<int32_t>{10});
    EXPECT_TRUE(taken.resume->image.empty());
    EXPECT_EQ(taken.resume->num_stored_blocks, 3);
    decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
    EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
    ExpectNothingHeld();
    EXPECT_EQ(prefill_->counters().committed, 1);
    EXPECT_EQ(decode_->counters().bytes_received, 0);
  }
};

TEST_F(SharedStore, ProfileMovesTheFirstTokenAlone) {
  profile_ = HandOffProfile::kStore;
  StartWithRoots("root", "root");
  SubmitBoth();
  EXPECT_EQ(prefill_->engine.request(0).state_sink, nullptr);
  prefill_->engine.SendImage(0, {}, 400);
  ExpectTakenFromStore();
}

TEST_F(SharedStore, ServesWhereTheStateCannotBeMoved) {
  WorkerServiceOptions options;
  options.landing.max_bytes = 100;
  StartWithRoots("root", "root", options);
  SubmitBoth();
  prefill_->engine.SendImage(0, Image(kSlotBytes + 4 * kBlockBytes), 400);
  ExpectTakenFromStore();
}

TEST_F(SharedStore, OfAnotherRootIsOfNoUse) {
  profile_ = HandOffProfile::kStore;
  StartWithRoots("root", "another");
  SubmitBoth();
  prefill_->engine.SendImage(0, {}, 400);
  EXPECT_EQ(prompt_.Wait().status.code(), StatusCode::kUnavailable);
  decode_->remote->Cancel("r");
  EXPECT_EQ(answer_.Wait().finish, FinishReason::kCancelled);
  ExpectNothingHeld();
}

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

TEST_F(HandOffTest, AWorkerWithoutADecoderTakesNoRoleThatNeedsOne) {
  Start();
  Node half(WorkerRole::kPrefill, dir_.File("h"), {}, &clock_, "", true);
  ASSERT_TRUE(half.remote->AskRole(WorkerRole::kDecode).ok());
  ASSERT_TRUE(half.remote->AskRole(WorkerRole::kAll).ok());
  // What comes after it on the session has arrived.
  ASSERT_TRUE(half.remote->SubmitPrefill(Request(), decode_->endpoint, prompt_.Sink()).ok());
  ASSERT_TRUE(Eventually([&] { return half.engine.num_taken() == 1; }));
  auto dialled = DialSession(half.endpoint, std::chrono::seconds(20));
  ASSERT_TRUE(dialled.ok());
  (*dialled)->Send(MakeHello(5, "operator", {}));
  wire::Message answer;
  ASSERT_TRUE((*dialled)->Receive(&answer));
  EXPECT_EQ(answer.hello().role(), "prefill");
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
