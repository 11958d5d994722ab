// Prompts in one engine, answers in another, with services and sessions between them: the bits of
// one engine, whatever moves and however it is disturbed.

#include <atomic>

#include "cluster/in_process_worker.h"
#include "cluster/remote_worker.h"
#include "cluster/session.h"
#include "cluster/worker_service.h"
#include "integration/engine/engine_fixture.h"
#include "support/eventually.h"
#include "transfer/noisy_path.h"

namespace deepinfer {
namespace {

constexpr int kNumRequests = 5;

class Node {
 public:
  Node(WorkerRole role, ModelPart part, EngineOptions options, WorkerServiceOptions service_options,
       const std::string& path, const Clock* clock) {
    const LongTinyCheckpoint checkpoint;
    model_ = std::make_unique<TinyModel>(
        TinyModelOptions{.checkpoint = checkpoint.path(), .threads = 1, .part = part});
    options.max_model_len = 1024;
    options.async_scheduling = UseAsyncScheduling();
    options.speculation.enabled = part == ModelPart::kWhole;
    auto engine = Engine::Create(model_->get(), options, clock);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    worker_ = std::make_unique<InProcessWorker>(std::string("tiny"), model_->get(),
                                                *std::move(engine), role);
    service_options.report_interval_us = 5'000;
    service_ = std::make_unique<WorkerService>(service_options, worker_.get(), clock);
    auto listening = SessionServer::Listen("unix:" + path,
                                           [this](Session* session) { service_->Serve(session); });
    EXPECT_TRUE(listening.ok());
    sessions_ = *std::move(listening);
    remote_ = std::make_unique<RemoteWorker>("unix:" + path, 1, WorkerInfo{}, RemoteWorkerOptions{},
                                             clock);
    EXPECT_TRUE(remote_->WaitReady(std::chrono::seconds(20)));
  }
  ~Node() {
    remote_.reset();
    sessions_.reset();
    service_.reset();
  }
  RemoteWorker* operator->() { return remote_.get(); }
  HandOffCounters counters() const { return remote_->Load().hand_offs; }
  // After so many states were sent, and so many taken.
  bool holds_nothing_after(int64_t sent, int64_t taken) const {
    const HandOffCounters c = counters();
    const EngineStatistics s = worker_->Statistics();
    return c.pins_acquired == sent && c.pins_released == sent && c.tickets_granted == taken &&
           c.tickets_released == taken && s.running == 0 && s.blocks_used == 0 && s.slots_used == 0;
  }
  EngineStatistics statistics() const { return worker_->Statistics(); }

 private:
  std::unique_ptr<TinyModel> model_;
  std::unique_ptr<InProcessWorker> worker_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<RemoteWorker> remote_;
};

class HandOffEngines : public EngineTest, public ::testing::WithParamInterface<HandOffProfile> {
 protected:
  // From all decoder tail to several chunks.
  static EngineRequest Request(int i) {
    EngineRequest r = StrictRequest(RandomPrompt(40 + 170 * i, static_cast<uint32_t>(i)), 12,
                                    static_cast<uint64_t>(i), "r" + std::to_string(i));
    r.sampling.num_top_logprobs = -1;
    return r;
  }
  ModelPart PrefillPart() const {
    const bool half = GetParam() == HandOffProfile::kEncoder || GetParam() == HandOffProfile::kTail;
    return half ? ModelPart::kEncoder : ModelPart::kWhole;
  }
  // The two are of unequal sizes: cache, rows of a step, sequences.
  void StartBoth(WorkerServiceOptions service = {}) {
    Start({}, 1024);
    for (int i = 0; i < kNumRequests; ++i) want_.push_back(Run(Request(i)));
    service.profile = GetParam();
    EngineOptions small, large;
    small.max_num_batched_tokens = 96;
    small.max_num_seqs = 3;
    small.kv_cache_tokens = 1280;
    large.kv_cache_tokens = 8192;
    prefill_ = std::make_unique<Node>(WorkerRole::kPrefill, PrefillPart(), small, service,
                                      dir_.File("p"), &steady_clock_);
    decode_ = std::make_unique<Node>(WorkerRole::kDecode, ModelPart::kWhole, large, service,
                                     dir_.File("d"), &steady_clock_);
  }
  void RunAll() {
    std::vector<TokenCollector> prompts(kNumRequests), answers(kNumRequests);
    for (int i = 0; i < kNumRequests; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_TRUE((*decode_)->SubmitDecode(Request(i), answers[at].Sink()).ok());
    }
    // A prompt that gives up its memory before its answer is announced runs elsewhere.
    ASSERT_TRUE(Eventually([&] { return (*decode_)->Load().running == kNumRequests; }));
    for (int i = 0; i < kNumRequests; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_TRUE(
          (*prefill_)->SubmitPrefill(Request(i), (*decode_)->endpoint(), prompts[at].Sink()).ok());
    }
    for (size_t i = 0; i < kNumRequests; ++i) {
      EXPECT_EQ(answers[i].Wait().finish, FinishReason::kLength) << i;
      EXPECT_EQ(prompts[i].Wait().finish, FinishReason::kHandedOff) << i;
      EXPECT_EQ(answers[i].ids(), want_[i]->ids()) << i;
      const RequestCounters& c = answers[i].Wait().counters;
      EXPECT_EQ(c.cached_tokens + c.computed_tokens, c.prompt_tokens) << i;
    }
    EXPECT_TRUE(Eventually([&] {
      return prefill_->holds_nothing_after(kNumRequests, 0) &&
             decode_->holds_nothing_after(0, kNumRequests);
    }));
    EXPECT_TRUE(Eventually([&] { return prefill_->counters().committed == kNumRequests; }));
    EXPECT_EQ(prefill_->counters().failed, 0);
  }

  TempDir dir_;
  SteadyClock steady_clock_;
  std::vector<std::unique_ptr<TokenCollector>> want_;
  std::unique_ptr<Node> prefill_, decode_;
};

TEST_P(HandOffEngines, GiveTheAnswersOfOne) {
  StartBoth();
  RunAll();
  EXPECT_TRUE(Eventually(
      [&] { return prefill_->counters().bytes_sent == decode_->counters().bytes_received; }));
  EXPECT_EQ(decode_->statistics().prefill_rows > 0, PrefillPart() == ModelPart::kEncoder);
}

TEST_P(HandOffEngines, RepairWhatIsBrokenOnItsWay) {
  WorkerServiceOptions service;
  std::atomic<int> num_extents{0}, num_changed{0};
  service.sender.wrap_path = [&](std::unique_ptr<ExtentPath> path) {
    return std::make_unique<NoisyPath>(std::move(path), /*each=*/3, &num_extents,
                                       [&] { ++num_changed; });
  };
  StartBoth(service);
  RunAll();
  EXPECT_GT(num_changed, 0);
  EXPECT_TRUE(Eventually([&] { return decode_->counters().extents_nacked == num_changed; }))
      << "every one is noticed";
  prefill_.reset();
}

INSTANTIATE_TEST_SUITE_P(Profiles, HandOffEngines,
                         ::testing::Values(HandOffProfile::kFull, HandOffProfile::kEncoder,
                                           HandOffProfile::kTail),
                         [](const auto& profile) {
                           switch (profile.param) {
                             case HandOffProfile::kEncoder:
                               return "Encoder";
                             case HandOffProfile::kTail:
                               return "Tail";
                             default:
                               return "Full";
                           }
                         });

}  // namespace
}  // namespace deepinfer
