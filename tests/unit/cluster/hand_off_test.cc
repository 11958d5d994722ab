// Hand-offs between two worker services over real sessions: a prompt's worker gives the state to
// the answer's, and whatever goes wrong, both sides are rid of it.

#include "unit/cluster/hand_off_fixture.h"

namespace deepinfer {
namespace {

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

class HandOffByUcx : public HandOffTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (!HasUcx()) GTEST_SKIP() << "this build has no UCX";
    const auto context = OpenUcx({GetParam()});
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    options_.sender.ucx = *context;
  }
  void MoveAState(size_t image_bytes) {
    SubmitBoth();
    FinishPrompt(image_bytes);
    EXPECT_EQ(prompt_.Wait().finish, FinishReason::kHandedOff);
    ASSERT_TRUE(Eventually([&] { return decode_->engine.num_taken() == 1; }));
    EXPECT_EQ(decode_->engine.request(0).resume->image, Image(image_bytes));
    decode_->engine.Send(0, 1, {11}, FinishReason::kStop);
    EXPECT_EQ(answer_.Wait().finish, FinishReason::kStop);
    ExpectNothingHeld();
  }
  WorkerServiceOptions options_;
};

TEST_P(HandOffByUcx, StatesTakeItWhereBothSidesHaveIt) {
  Start(options_);
  MoveAState(3'000'000);
  EXPECT_EQ(decode_->counters().bytes_by_ucx, 3'000'000);
}

TEST_P(HandOffByUcx, StatesTakeAnotherWayToAWorkerWithoutIt) {
  Start(options_, {});
  MoveAState(3'000'000);
  EXPECT_EQ(decode_->counters().bytes_received, 3'000'000);
  EXPECT_EQ(decode_->counters().bytes_by_ucx, 0);
}

TEST_P(HandOffByUcx, StatesTakeAnotherWayFromAWorkerWithoutIt) {
  Start({}, options_);
  MoveAState(3'000'000);
  EXPECT_EQ(decode_->counters().bytes_received, 3'000'000);
  EXPECT_EQ(decode_->counters().bytes_by_ucx, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, HandOffByUcx, ::testing::Values("tcp", "shm"),
                         [](const auto& transport) { return std::string(transport.param); });

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

TEST(Handshake, TheNamespaceOfBlockKeysIsTold) {
  WorkerInfo info;
  EXPECT_FALSE(InfoOfHello(MakeHello(1, "all", info)).kv_namespace);
  info.kv_namespace = Sha256("blocks");
  EXPECT_EQ(InfoOfHello(MakeHello(1, "all", info)).kv_namespace, info.kv_namespace);
  EXPECT_FALSE(InfoOfHello(MakeHello(1, "all", info)).answers_probes);
  info.answers_probes = true;
  EXPECT_TRUE(InfoOfHello(MakeHello(1, "all", info)).answers_probes);
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

}  // namespace
}  // namespace deepinfer
