// A random walk over everything that can happen to requests and workers of a gateway, in memory:
// whatever the order, each client gets each token of its answer once, and one end.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cluster/gateway.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/scripted_worker.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

constexpr int kLength = 12;  // tokens of every answer

int32_t TokenOf(const std::string& request, int32_t index) {
  return static_cast<int32_t>(std::hash<std::string>{}(request + std::to_string(index)) % 97);
}

class GatewayWalk : public ::testing::Test {
 protected:
  struct Client {
    TokenCollector out;
    bool cancelled = false;
  };
  // A run that a worker has taken.
  struct Run {
    size_t worker = 0;
    size_t index = 0;
    std::string request;
    std::string kind;
    int32_t next = 0;
    bool ended = false;
  };

  GatewayWalk() {
    std::vector<std::unique_ptr<Worker>> workers;
    for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kPrefill, WorkerRole::kDecode,
                                  WorkerRole::kDecode, WorkerRole::kAll}) {
      auto worker = std::make_unique<ScriptedWorker>(role);
      worker->SetMaxRunning(4);
      workers_.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    seen_.resize(workers_.size());
    GatewayOptions options;
    options.max_attempts = 1'000'000;
    options.recovery_us = INT64_MAX / 2;
    gateway_ = std::make_unique<Gateway>(options, std::move(workers), &clock_);
  }

  void Submit() {
    auto client = std::make_unique<Client>();
    EngineRequest request;
    request.request_id = "r" + std::to_string(clients_.size());
    request.prompt_ids = {5, 6, 7};
    request.sampling.max_tokens = kLength;
    const Status status = gateway_->Submit(std::move(request), client->out.Sink());
    // With no worker ready there is nobody to take it.
    if (status.ok()) clients_.push_back(std::move(client));
  }

  // What workers were given since the last look.
  void Look() {
    for (size_t w = 0; w < workers_.size(); ++w) {
      for (; seen_[w] < workers_[w]->num_taken(); ++seen_[w]) {
        const EngineRequest request = workers_[w]->request(seen_[w]);
        Run run{w, seen_[w], request.request_id, workers_[w]->kinds().at(seen_[w])};
        if (request.resume) {
          run.next = static_cast<int32_t>(request.resume->ids.size());
          for (int32_t i = 0; i < run.next; ++i) {
            ASSERT_EQ(request.resume->ids[static_cast<size_t>(i)], TokenOf(run.request, i));
          }
        }
        runs_.push_back(run);
      }
    }
  }

  void Send(Run* run, int32_t start, int32_t count, FinishReason finish = FinishReason::kNone,
            Status status = OkStatus()) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < count; ++i) ids.push_back(TokenOf(run->request, start + i));
    workers_[run->worker]->Send(run->index, start, ids, finish, std::move(status));
    run->next = std::max(run->next, start + count);
    run->ended = finish != FinishReason::kNone;
  }

  // The run goes on by some tokens, those of the end included.
  void Advance(Run* run, int32_t count) {
    if (run->kind.starts_with("prefill")) {
      Send(run, 0, 1);
      return Send(run, 1, 0, FinishReason::kHandedOff);
    }
    count = std::min(count, kLength - run->next);
    const bool last = run->next + count == kLength;
    Send(run, run->next, count, last ? FinishReason::kLength : FinishReason::kNone);
  }

  void Step(std::minstd_rand* random) {
    const auto below = [random](size_t n) { return (*random)() / 7 % n; };
    std::vector<Run*> live;
    for (Run& run : runs_) {
      if (!run.ended) live.push_back(&run);
    }
    const size_t what = below(20);
    if (what < 4) return Submit();
    // Without credit requests wait at the gateway.
    if (what == 9) return workers_[below(workers_.size())]->SetRunning(below(5) > 0 ? 0 : 9);
    if (what == 4) return workers_[below(workers_.size())]->SetReady(below(3) > 0);
    if (what == 5 && !clients_.empty()) {
      const size_t i = below(clients_.size());
      clients_[i]->cancelled = true;
      return gateway_->Cancel("r" + std::to_string(i));
    }
    if (live.empty()) return;
    Run* run = live[below(live.size())];
    if (what == 6) return Send(run, run->next, 0, FinishReason::kError, Unavailable("lost"));
    if (what == 7) {  // what was told already, once more
      const auto count = static_cast<int32_t>(below(3));
      return Send(run, std::max(0, run->next - 2), std::min(count, run->next));
    }
    if (what == 8) {  // a token is missing in between
      if (run->kind.starts_with("prefill")) return;
      return Send(run, run->next + 1, 1, FinishReason::kError, Unavailable("lost"));
    }
    Advance(run, 1 + static_cast<int32_t>(below(3)));
  }

  // Everything works again, and cancelled runs end.
  void Finish() {
    for (ScriptedWorker* worker : workers_) {
      worker->SetReady(true);
      worker->SetRunning(0);
    }
    const auto all_done = [this] {
      Look();
      for (size_t i = 0; i < runs_.size(); ++i) {
        if (!runs_[i].ended) Advance(&runs_[i], kLength);
      }
      return std::all_of(clients_.begin(), clients_.end(),
                         [](const auto& client) { return client->out.done(); });
    };
    ASSERT_TRUE(Eventually(all_done));
  }

  FakeClock clock_{1};
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<ScriptedWorker*> workers_;
  std::vector<size_t> seen_;
  std::vector<Run> runs_;
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(GatewayWalk, EveryClientGetsEveryTokenOnce) {
  const char* given = std::getenv("GATEWAY_WALK_SEED");
  const auto seed = given != nullptr ? static_cast<uint32_t>(std::atoi(given))
                                     : std::random_device{}() % 1'000'000;
  SCOPED_TRACE("GATEWAY_WALK_SEED=" + std::to_string(seed));
  std::minstd_rand random(seed + 1);
  // The keeper is a thread of its own: the walk goes on until it has had work of every kind.
  const auto saw_enough = [this] {
    const GatewayCounters counters = gateway_->counters();
    return counters.migrated > 10 && counters.queued > 10;
  };
  for (int i = 0; i < 5'000 || !saw_enough(); ++i) {
    ASSERT_LT(i, 25'000) << "nothing was migrated or queued";
    if (i >= 5'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Look();
    Step(&random);
    clock_.Advance(20'000);  // what was barred is tried again
  }
  Finish();
  int num_whole = 0;
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = *clients_[i];
    const std::string name = "r" + std::to_string(i);
    const std::vector<int32_t>& ids = client.out.ids();
    for (size_t k = 0; k < ids.size(); ++k) {
      ASSERT_EQ(ids[k], TokenOf(name, static_cast<int32_t>(k))) << name;
    }
    if (client.cancelled) continue;
    EXPECT_EQ(client.out.Wait().finish, FinishReason::kLength) << name;
    EXPECT_EQ(ids.size(), static_cast<size_t>(kLength)) << name;
    ++num_whole;
  }
  EXPECT_GT(num_whole, 100);
  EXPECT_GT(gateway_->counters().migrated, 10);
  EXPECT_GT(gateway_->counters().queued, 10);
  EXPECT_EQ(gateway_->Load().waiting, 0);
}

}  // namespace
}  // namespace deepinfer
