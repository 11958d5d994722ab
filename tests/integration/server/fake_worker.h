// A worker that emits given ids in steps the test controls: deterministic, no model.
// Thread rule: any thread; events are delivered on its own thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cluster/worker.h"
#include "engine/delivery.h"

namespace deepinfer::testing {

class FakeWorker final : public Worker {
 public:
  explicit FakeWorker(WorkerInfo info);
  ~FakeWorker() override;

  // --- the script, for requests submitted afterwards ---
  // Ids every request emits, cycled up to max_tokens when `endless`; else followed by the end
  // token.
  void SetOutput(std::vector<int32_t> ids, bool endless = false);
  // Output chosen per request.
  void SetOutputOf(std::function<std::vector<int32_t>(const EngineRequest&)> output);
  void SetCommit(int32_t tokens_per_step);  // 0: all at once
  void SetCached(int64_t tokens);
  void SetCacheWritten(int64_t tokens);
  void SetStatistics(const EngineStatistics& statistics);  // the running ones are counted
  void SetSubmitStatus(Status status);
  void SetHealthy(bool healthy) { healthy_ = healthy; }
  // After this many tokens requests end like this.
  void SetFailure(size_t after_tokens, Status status, FinishReason finish = FinishReason::kError);

  // Requests at their token limit stay until they are cancelled.
  void SetNeverFinish(bool never_finish);

  // While held no step runs; cancellations still do.
  void Hold();
  void Release();
  void Step();         // one step while held
  void BlockSubmit();  // Submit blocks its caller until UnblockSubmit
  void UnblockSubmit();

  // --- what was seen ---
  std::vector<EngineRequest> submitted() const;
  std::vector<std::string> cancelled() const;  // ids cancelled while live
  bool WaitSubmitted(size_t count);
  bool WaitCancelled(size_t count);
  bool WaitIdle();
  // Until some request runs no further because its receiver holds a full window of events.
  bool WaitStalled();
  int64_t emitted() const;  // tokens of all requests
  // Events whose receivers have not let go of them.
  int64_t outstanding() const { return *outstanding_; }

  // --- Worker ---
  WorkerInfo info() const override { return info_; }
  Status Submit(EngineRequest request, TokenSink sink) override;
  void Cancel(std::string_view request_id) override;
  LoadReport Load() const override;
  bool healthy() const override { return healthy_; }
  EngineStatistics Statistics() const override;
  // Answers at once with steps 0, 1, ... of ten milliseconds each.
  Status Profile(int32_t num_steps, int64_t deadline_us, ProfileSink done) override;
  void Drain(int64_t deadline_us) override;

 private:
  struct Live {
    EngineRequest request;
    TokenSink sink;
    std::vector<int32_t> output;
    size_t emitted = 0;
    bool cancelled = false;
    std::shared_ptr<DeliveryWindow> window;  // as an engine keeps one
  };
  class Waker;

  void Loop();
  TokenEvent NextEvent(Live& live);
  TokenLogprobs LogprobsOf(int32_t id, int32_t num_top) const;
  bool HasCancelled() const;
  bool HasRunnable() const;
  bool IsRunnable(const Live& live) const;

  const WorkerInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Live, std::less<>> live_;
  std::function<std::vector<int32_t>(const EngineRequest&)> output_;
  std::vector<EngineRequest> submitted_;
  std::vector<std::string> cancelled_;
  Status submit_status_;
  Status failure_;
  FinishReason failure_finish_ = FinishReason::kError;
  size_t failure_after_ = 0;
  int32_t commit_ = 1;
  int64_t cached_ = 0;
  int64_t cache_written_ = 0;
  EngineStatistics statistics_;
  int steps_allowed_ = -1;  // -1: not held
  bool never_finish_ = false;
  bool submit_blocked_ = false;
  bool draining_ = false;
  bool stopping_ = false;
  int64_t emitted_ = 0;
  std::atomic<bool> healthy_{true};
  const std::shared_ptr<std::atomic<int64_t>> outstanding_ =
      std::make_shared<std::atomic<int64_t>>(0);
  std::shared_ptr<Waker> waker_;
  std::thread thread_;
};

}  // namespace deepinfer::testing
