// Two worker services in one process with real sessions between them: a prompt's worker and an
// answer's. Thread rule: test thread.
#pragma once

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

inline std::vector<std::byte> Image(size_t size) {
  std::vector<std::byte> image(size);
  for (size_t i = 0; i < size; ++i) image[i] = static_cast<std::byte>(i * 7 + i / 255);
  return image;
}

inline constexpr int64_t kSlotBytes = 5000;
inline constexpr size_t kBlockBytes = 3000;

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
  void Start(const WorkerServiceOptions& options = {}) { Start(options, options); }
  void Start(WorkerServiceOptions of_prefill, WorkerServiceOptions of_decode) {
    of_prefill.profile = of_decode.profile = profile_;
    prefill_ = std::make_unique<Node>(WorkerRole::kPrefill, dir_.File("p"), of_prefill, &clock_,
                                      prefill_root_);
    decode_ = std::make_unique<Node>(WorkerRole::kDecode, dir_.File("d"), of_decode, &clock_,
                                     decode_root_);
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

}  // namespace deepinfer
