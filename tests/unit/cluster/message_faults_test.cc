// A gateway and its workers whose messages come twice or in another order, those of hand-offs
// between workers too: each client gets each token of its answer once, and nothing stays held.

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cluster/gateway.h"
#include "cluster/incarnation.h"
#include "cluster/remote_worker.h"
#include "cluster/worker_service.h"
#include "support/eventually.h"
#include "support/message_relay.h"
#include "support/temp_dir.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

constexpr int32_t kLength = 12;
constexpr int kNumRequests = 15;

int32_t TokenOf(int32_t prompt, int32_t index) { return (prompt * 31 + index * 7) % 97; }

// An engine whose answers follow from the prompt: a token of each request in turn.
class CountingEngine final : public Worker {
 public:
  explicit CountingEngine(WorkerRole role) {
    info_.role = role;
    info_.model_name = "counting";
    info_.vocab_size = 100;
    info_.max_model_len = 1000;
    info_.incarnation = NewIncarnation();
    info_.kv_slot_bytes = 5000;
    info_.kv_block_bytes = 1000;
    info_.kv_section_bytes = {1000};
    thread_ = std::thread([this] { Run(); });
  }
  ~CountingEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  WorkerInfo info() const override { return info_; }
  Status Submit(EngineRequest request, TokenSink sink) override {
    const std::lock_guard lock(mutex_);
    const auto next =
        request.resume ? static_cast<int32_t>(request.resume->ids.size()) : int32_t{0};
    for (int32_t i = 0; i < next; ++i) {
      EXPECT_EQ(request.resume->ids[static_cast<size_t>(i)], TokenOf(request.prompt_ids[0], i));
    }
    work_.push_back({std::move(request), std::move(sink), next});
    changed_.notify_all();
    return OkStatus();
  }
  void Cancel(std::string_view id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.emplace(id);
    changed_.notify_all();
  }
  LoadReport Load() const override {
    const std::lock_guard lock(mutex_);
    LoadReport load;
    load.running = static_cast<int32_t>(work_.size());
    return load;
  }
  bool healthy() const override { return true; }
  EngineStatistics Statistics() const override { return {}; }
  void Drain(int64_t) override {}

 private:
  struct Work {
    EngineRequest request;
    TokenSink sink;
    int32_t next = 0;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (stop_) return;
      Work work = std::move(work_.front());
      work_.pop_front();
      TokenEvent event;
      event.start_index = work.next;
      event.counters.prompt_tokens = 3;
      if (cancelled_.erase(work.request.request_id) > 0) {
        event.finish = FinishReason::kCancelled;
      } else {
        event.ids = {TokenOf(work.request.prompt_ids[0], work.next++)};
        if (work.request.hand_off == HandOffProfile::kFull) {
          event.finish = FinishReason::kHandedOff;
          event.image.resize(5000);
        } else if (work.next == kLength) {
          event.finish = FinishReason::kLength;
        }
      }
      lock.unlock();
      const bool over = event.finish != FinishReason::kNone;
      work.sink(std::move(event));
      if (over) work.sink = nullptr;
      std::this_thread::yield();
      lock.lock();
      if (!over) work_.push_back(std::move(work));
    }
  }

  WorkerInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::set<std::string> cancelled_;
  bool stop_ = false;
  std::thread thread_;
};

// A worker behind its service, whose messages all pass a relay.
struct RelayedWorker {
  RelayedWorker(WorkerRole role, const std::string& path, const MessageRelay::Faults& faults,
                const Clock* clock)
      : engine(role) {
    WorkerServiceOptions options;
    options.report_interval_us = 5'000;
    service = std::make_unique<WorkerService>(options, &engine, clock);
    auto listening =
        SessionServer::Listen("unix:" + path, [this](Session* s) { service->Serve(s); });
    EXPECT_TRUE(listening.ok());
    sessions = *std::move(listening);
    relay = std::make_unique<MessageRelay>("unix:" + path + ".relay", "unix:" + path, faults);
  }
  ~RelayedWorker() {
    relay.reset();
    sessions.reset();
    service.reset();
  }
  CountingEngine engine;
  std::unique_ptr<WorkerService> service;
  std::unique_ptr<SessionServer> sessions;
  std::unique_ptr<MessageRelay> relay;
};

struct Case {
  const char* name;
  double twice;
  int most_delay;
};

class MessageFaults : public ::testing::TestWithParam<Case> {
 protected:
  void Start(std::initializer_list<WorkerRole> roles, uint32_t seed) {
    std::vector<std::unique_ptr<Worker>> links;
    for (const WorkerRole role : roles) {
      const std::string path = dir_.File("w" + std::to_string(workers_.size()));
      const MessageRelay::Faults faults{GetParam().twice, GetParam().most_delay,
                                        seed + static_cast<uint32_t>(workers_.size())};
      workers_.push_back(std::make_unique<RelayedWorker>(role, path, faults, &clock_));
      auto link = std::make_unique<RemoteWorker>("unix:" + path + ".relay", 1, WorkerInfo{},
                                                 RemoteWorkerOptions{}, &clock_);
      EXPECT_TRUE(link->WaitReady(std::chrono::seconds(20)));
      links_.push_back(link.get());
      links.push_back(std::move(link));
    }
    GatewayOptions options;
    options.max_attempts = 10'000;  // every gap in an answer costs one
    gateway_ = std::make_unique<Gateway>(options, std::move(links), &clock_);
  }
  void AskAndCheck() {
    std::vector<TokenCollector> outs(kNumRequests);
    for (int i = 0; i < kNumRequests; ++i) {
      EngineRequest request;
      request.request_id = "r" + std::to_string(i);
      request.prompt_ids = {i + 1, 2, 3};
      request.sampling.max_tokens = kLength;
      ASSERT_TRUE(gateway_->Submit(std::move(request), outs[static_cast<size_t>(i)].Sink()).ok());
      if (i % 5 == 4) gateway_->Cancel("r" + std::to_string(i));
    }
    for (int i = 0; i < kNumRequests; ++i) {
      TokenCollector& out = outs[static_cast<size_t>(i)];
      const FinishReason finish = out.Wait().finish;
      const auto length = static_cast<int32_t>(out.ids().size());
      if (finish != FinishReason::kCancelled) {
        EXPECT_EQ(finish, FinishReason::kLength);
        EXPECT_EQ(length, kLength);
      }
      for (int32_t t = 0; t < length; ++t) {
        ASSERT_EQ(out.ids()[static_cast<size_t>(t)], TokenOf(i + 1, t)) << i;
      }
    }
    for (RemoteWorker* link : links_) {
      EXPECT_TRUE(Eventually([&] {
        const LoadReport load = link->Load();
        const HandOffCounters& c = load.hand_offs;
        return load.running == 0 && c.tickets_granted == c.tickets_released &&
               c.pins_acquired == c.pins_released;
      }));
    }
  }

  TempDir dir_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<RelayedWorker>> workers_;
  std::vector<RemoteWorker*> links_;
  std::unique_ptr<Gateway> gateway_;  // before the workers
};

uint32_t Seed() { return std::random_device{}() % 1'000'000; }

TEST_P(MessageFaults, WholeRequestsHaveTheirAnswers) {
  const uint32_t seed = Seed();
  SCOPED_TRACE(seed);
  Start({WorkerRole::kAll, WorkerRole::kAll}, seed);
  AskAndCheck();
}

TEST_P(MessageFaults, RequestsThatAreHandedOverHaveTheirAnswers) {
  const uint32_t seed = Seed();
  SCOPED_TRACE(seed);
  Start({WorkerRole::kPrefill, WorkerRole::kDecode, WorkerRole::kDecode}, seed);
  AskAndCheck();
  EXPECT_GT(gateway_->counters().hand_offs, 0);
}

INSTANTIATE_TEST_SUITE_P(Faults, MessageFaults,
                         ::testing::Values(Case{"None", 0, 0}, Case{"Twice", 0.4, 0},
                                           Case{"OtherOrder", 0, 3}, Case{"Both", 0.3, 3}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace deepinfer
