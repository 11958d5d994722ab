// A worker in another process, over one session that is set up again whenever it is lost
// (docs/cluster.md §3). A lost session ends its requests with `unavailable`; their owner decides
// what becomes of them.
// Thread rule: as Worker; sinks are called on the thread of the link.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/session.h"
#include "cluster/worker.h"

namespace deepinfer {

class AckCounter;

struct RemoteWorkerOptions {
  // Without a report for so long the worker hangs or is cut off (docs/cluster.md §5).
  int64_t silence_us = 3'000'000;
  int64_t dial_us = 1'000'000;
  int64_t least_backoff_us = 100'000;
  int64_t most_backoff_us = 2'000'000;
  SecurityPtr security;
  bool is_operator = false;  // it sends no requests, so workers do not count it as a gateway
};

class RemoteWorker final : public Worker {
 public:
  // Connects in the background. own names the gateway; its numerics_id may be empty.
  RemoteWorker(std::string endpoint, uint64_t own_incarnation, WorkerInfo own,
               const RemoteWorkerOptions& options, const Clock* clock);
  ~RemoteWorker() override;  // ends what runs, as a loss does

  const std::string& endpoint() const { return endpoint_; }

  // Of the last process that answered, with its role as of now; only the endpoint before the first.
  WorkerInfo info() const override { return *shared_info(); }
  std::shared_ptr<const WorkerInfo> shared_info() const override;
  Status Submit(EngineRequest request, TokenSink sink) override;
  Status SubmitPrefill(EngineRequest request, const std::string& decode_endpoint,
                       TokenSink sink) override;
  Status SubmitDecode(EngineRequest request, TokenSink sink) override;
  Status Adopt(const EngineRequest& request, TokenSink sink) override;
  std::optional<StoredPrefix> Probe(std::span<const BlockKey> keys, int32_t prompt_tokens,
                                    std::chrono::microseconds limit) override;
  void Cancel(std::string_view request_id) override;
  LoadReport Load() const override;
  bool healthy() const override { return healthy_.load(std::memory_order_acquire); }
  EngineStatistics Statistics() const override;
  WorkerQueue Queue() const override;
  void Drain(int64_t deadline_us) override;
  void Sweep(int64_t now_us) override;

  // Asks the worker to end its requests within this time, then itself. unavailable: out of reach.
  Status AskDrain(int64_t within_us);

  // Gives it another role. unavailable: out of reach.
  Status AskRole(WorkerRole role);

  // False on time-out.
  bool WaitReady(std::chrono::milliseconds limit);

 private:
  struct Run {
    uint32_t attempt = 0;
    std::shared_ptr<TokenSink> sink;  // shared with the call that is under way
    std::shared_ptr<AckCounter> acks;
    int64_t untold_bytes = 0;  // of its submission, until its first event
  };
  struct Charge {
    uint64_t seq = 0;
    PromptWork prompt;
    bool prefill = false;
  };

  // A message of this gateway to the process it is connected to.
  wire::Message Address() const;
  // Under the lock: adds what a dispatched request will be to the load.
  void Apply(const Charge& charge);
  // Under the lock; the session stands.
  Status AddRun(const EngineRequest& request, TokenSink sink);
  Status Dispatch(EngineRequest request, int mode, const std::string& decode_endpoint,
                  TokenSink sink);
  void Loop();
  // Dials and says Hello; null when that failed.
  std::shared_ptr<Session> Connect();
  void Listen(Session* session);
  void OnTokens(wire::Message* message);
  void OnReport(const wire::Message& message);
  void OnState(const wire::Message& message);
  void OnProbeResult(const wire::Message& message);
  void FailRuns(const Status& status);

  const std::string endpoint_;
  const uint64_t own_incarnation_;
  const WorkerInfo own_;
  const RemoteWorkerOptions options_;
  const Clock* const clock_;
  std::atomic<bool> healthy_{false};  // it can be reached and says so

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Session> session_;        // null while there is none
  std::shared_ptr<const WorkerInfo> info_;  // another object for every change
  LoadReport load_;                         // as last reported, and the charges since
  EngineStatistics statistics_;
  int64_t last_report_us_ = 0;
  int64_t last_sweep_us_ = 0;
  uint64_t next_dispatch_seq_ = 1;
  std::vector<Charge> charges_;  // dispatched after the last report was made
  std::unordered_map<std::string, Run> runs_;
  // Runs of the session that was lost, and whose they were: nobody here wants them any more.
  std::vector<std::pair<std::string, uint32_t>> left_;
  uint64_t left_at_ = 0;
  std::unordered_map<std::string, std::optional<bool>> asked_;  // answers to queries, by request
  struct Asked {
    int32_t prompt_tokens = 0;
    std::optional<StoredPrefix> answer;
  };
  std::unordered_map<uint64_t, Asked> probes_;  // under way, by number
  uint64_t next_probe_ = 1;
  bool draining_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
