// What a gateway learns of the persistent cache of its cell before it places a request.

#include "cluster/prefix_probe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
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

constexpr StoredPrefix kStored{.own_tokens = 128, .peer_tokens = 256, .first_row = 300};

Sha256Digest Space() { return Sha256("namespace"); }

EngineRequest Request(int32_t prompt_tokens) {
  EngineRequest request;
  request.request_id = "a";
  request.prompt_ids.assign(static_cast<size_t>(prompt_tokens), 7);
  request.cache_scope = Sha256("scope");
  return request;
}

std::shared_ptr<ScriptedWorker> Sharing(std::string root) {
  auto worker = std::make_shared<ScriptedWorker>(WorkerRole::kPrefill);
  worker->SetNamespace(std::move(root), Space());
  return worker;
}

TEST(PrefixProbe, AsksForTheKeysThatTheWorkersKnow) {
  const auto worker = Sharing("root");
  std::vector<BlockKey> asked;
  worker->when_probed = [&](std::span<const BlockKey> keys, int32_t prompt_tokens,
                            std::chrono::microseconds limit) {
    EXPECT_EQ(prompt_tokens, 400);
    EXPECT_EQ(limit, std::chrono::milliseconds(5));
    asked.assign(keys.begin(), keys.end());
    return kStored;
  };
  PrefixProbe probe;
  probe.Follow({worker});
  const EngineRequest request = Request(400);
  EXPECT_EQ(probe.Find(request).first_row, 300);
  KeyOrigin origin;
  origin.namespace_id = Space();
  origin.scope.digest = request.cache_scope;
  EXPECT_EQ(asked, ComputeBlockKeys(origin, request.prompt_ids, {}));
  EXPECT_EQ(asked.size(), 3u);
  const PrefixProbe::Counts counts = probe.counts();
  EXPECT_EQ(counts.asked, 1);
  EXPECT_EQ(counts.own_tokens, 128);
  EXPECT_EQ(counts.peer_tokens, 256);
}

TEST(PrefixProbe, AsksNobodyWhereNobodySpeaksForTheOthers) {
  int num_asked = 0;
  const auto count = [&](std::span<const BlockKey>, int32_t, auto) {
    ++num_asked;
    return kStored;
  };
  const auto one = Sharing(""), other = Sharing("");
  one->when_probed = other->when_probed = count;
  PrefixProbe probe;
  probe.Follow({one, other});
  EXPECT_EQ(probe.Find(Request(400)).tokens(), 0) << "each has a cache of its own";
  probe.Follow({one});
  EXPECT_EQ(probe.Find(Request(400)).tokens(), 384) << "the only one speaks for itself";
  EXPECT_EQ(probe.Find(Request(127)).tokens(), 0) << "no whole block";
  EngineRequest with_all_rows = Request(400);
  with_all_rows.sampling.prompt_logprobs = true;
  EXPECT_EQ(probe.Find(with_all_rows).tokens(), 0);
  one->SetReady(false);
  probe.Follow({one});
  EXPECT_EQ(probe.Find(Request(400)).tokens(), 0);
  EXPECT_EQ(num_asked, 1);
}

// Processes that hang, with what a gateway has of them.
class ProbedCell : public ::testing::Test {
 protected:
  struct Process {
    ScriptedWorker engine{WorkerRole::kAll};
    std::unique_ptr<WorkerService> service;
    std::unique_ptr<SessionServer> sessions;
  };

  std::unique_ptr<RemoteWorker> Start(Process* process) {
    process->engine.SetNamespace("root", Space());
    WorkerServiceOptions options;
    options.report_interval_us = 5'000;
    process->service = std::make_unique<WorkerService>(options, &process->engine, &clock_);
    const std::string endpoint = "unix:" + dir_.File("w" + std::to_string(num_started_++));
    auto listening = SessionServer::Listen(
        endpoint, [process](Session* session) { process->service->Serve(session); });
    EXPECT_TRUE(listening.ok());
    process->sessions = *std::move(listening);
    auto remote =
        std::make_unique<RemoteWorker>(endpoint, 1, WorkerInfo{}, RemoteWorkerOptions{}, &clock_);
    EXPECT_TRUE(remote->WaitReady(std::chrono::seconds(20)));
    return remote;
  }
  static void Stop(Process* process) {
    process->sessions.reset();
    process->engine.EndAll();
    process->service.reset();
  }

  TempDir dir_;
  FakeClock clock_{1};
  int num_started_ = 0;
};

TEST_F(ProbedCell, TheAnswerComesThroughTheSession) {
  Process process;
  process.engine.when_probed = [](std::span<const BlockKey> keys, int32_t prompt_tokens, auto) {
    EXPECT_EQ(keys.size(), 3u);
    EXPECT_EQ(prompt_tokens, 400);
    return kStored;
  };
  std::unique_ptr<RemoteWorker> remote = Start(&process);
  const std::vector<BlockKey> keys(3);
  const auto stored = remote->Probe(keys, 400, std::chrono::seconds(20));
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->own_tokens, 128);
  EXPECT_EQ(stored->peer_tokens, 256);
  EXPECT_EQ(stored->first_row, 300);
  remote.reset();
  Stop(&process);
}

// Requests go on as if nothing were stored, and each of the workers is waited for once.
TEST_F(ProbedCell, ACellThatHangsHoldsNobodyUp) {
  Process processes[2];
  std::promise<void> wake;
  std::shared_future<void> woken = wake.get_future().share();
  std::vector<std::unique_ptr<Worker>> remotes;
  for (Process& process : processes) {
    process.engine.when_probed = [woken](std::span<const BlockKey>, int32_t, auto) {
      woken.wait();
      return kStored;
    };
    remotes.push_back(Start(&process));
  }
  auto list = std::make_unique<WorkerSet>(std::move(remotes));
  PrefixProbe probe;
  probe.Follow(*list->list());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(probe.Find(Request(400)).tokens(), 0);
  EXPECT_EQ(probe.counts().asked, 2);
  EXPECT_EQ(probe.counts().unanswered, 2);
  wake.set_value();
  probe.Follow(*list->list());
  // Answers that come late are nobody's.
  EXPECT_TRUE(Eventually([&] {
    probe.Follow(*list->list());
    return probe.Find(Request(400)).tokens() == 384;
  }));
  probe.Follow({});
  list.reset();
  for (Process& process : processes) Stop(&process);
}

// H is in what a request costs; where it runs is as without it.
TEST(GatewayWithAProbe, WhatIsStoredIsInTheCostOnly) {
  FakeClock clock(1'000'000);
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<ScriptedWorker*> scripted;
  PredictedCosts costs{.prompt_us_per_token = 1'000, .step_us_per_row = 1'000};
  for (const double queued_us : {50'000.0, 20'000.0}) {
    auto worker = std::make_unique<ScriptedWorker>(WorkerRole::kAll);
    worker->SetNamespace("root", Space());
    worker->SetEndpoint("unix:w" + std::to_string(workers.size()));
    worker->SetRunning(1);
    costs.queued_us = queued_us;
    worker->SetCosts(costs);
    worker->when_probed = [](std::span<const BlockKey>, int32_t, auto) { return kStored; };
    scripted.push_back(worker.get());
    workers.push_back(std::move(worker));
  }
  GatewayOptions options;
  options.ttft_slo_us = 200'000;
  Gateway gateway(options, std::move(workers), &clock);
  TokenCollector out;
  // 400 rows would take 400 ms, the 100 that are left take 100.
  ASSERT_TRUE(gateway.Submit(Request(400), out.Sink()).ok());
  const size_t taker = scripted[0]->num_taken() == 1 ? 0 : 1;
  ASSERT_EQ(scripted[taker]->num_taken(), 1u);
  EXPECT_EQ(scripted[taker]->request(0).stored.first_row, 300);
  EXPECT_EQ(gateway.counters().probes.own_tokens, 128);
  for (ScriptedWorker* worker : scripted) worker->when_probed = nullptr;
  EngineRequest other = Request(400);
  other.request_id = "b";
  EXPECT_EQ(gateway.Submit(std::move(other), out.Sink()).code(), StatusCode::kResourceExhausted)
      << "without it the first token would be late";
  scripted[taker]->Send(0, 0, {1}, FinishReason::kStop);
}

}  // namespace
}  // namespace deepinfer
