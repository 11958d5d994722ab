// What is known about one HTTP request when it is over: the source of its log line and metrics.
// Thread rule: any thread.
// Owner: shared by the connection and, while tokens are generated, the generation; the last one
// to leave completes it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/process_stats.h"
#include "engine/statistics.h"
#include "server/api_keys.h"
#include "server/http.h"
#include "server/trace_context.h"

namespace deepinfer {

// Never holds text of a prompt or an answer.
struct RequestFacts {
  std::string request_id;
  std::string attempt_id;  // of one that generated: engines know its choices as "<attempt_id>-<n>"
  std::string method;
  std::string route;  // canonical name; "unknown" when no route matched
  std::string key_name;
  std::string model;
  std::string finish_reason;  // of the first choice
  std::string error_code;     // code of the error body, if one was sent
  std::string client_retry;   // x-stainless-retry-count
  uint64_t request_bytes = 0;
  HttpOutcome outcome;

  std::chrono::steady_clock::time_point received;
  bool is_accounted = false;  // of a generating route and past the check of its key
  std::string work_label;     // Idempotency-Key, or a request id of the client's own
  std::string body_hash;      // only with a ledger and without work_label
  TraceContext trace;
  std::string session_label;   // of the client
  std::string user_namespace;  // keyed hash of who may share cached prefixes

  int64_t cpu_ns = 0;  // of the threads of the server that worked for it

  bool is_probe = false;  // a health check, which fails as a matter of course during a load

  bool generated = false;            // the fields below are filled
  bool cancelled = false;            // the client left while tokens were generated
  bool cancelled_by_server = false;  // a drain ran out of time
  std::chrono::steady_clock::time_point admitted;
  std::chrono::steady_clock::time_point first_token;  // epoch: none came
  std::chrono::steady_clock::time_point last_token;
  int32_t num_choices = 0;
  int64_t max_tokens = 0;
  float temperature = 1;
  float top_p = 1;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t disk_tokens = 0;  // part of cached_tokens that came from the persistent cache
  std::string cache_miss;   // why the first block that was not cached was not; "none": all were
  int64_t computed_tokens = 0;
  int64_t replayed_tokens = 0;
  int64_t completion_tokens = 0;
  std::array<int64_t, kNumCacheTiers> cached_by_tier{};
  int64_t image_tokens = 0;
  int64_t cache_write_tokens = 0;
  // Parts of completion_tokens; the rest is content.
  int64_t reasoning_tokens = 0;
  int64_t tool_tokens = 0;
  int64_t control_tokens = 0;
  int64_t drafted_tokens = 0;
  int64_t draft_accepted_tokens = 0;
  int64_t wasted_tokens = 0;  // generated beyond completion_tokens, for nobody
  int64_t num_chunks = 0;     // writes of the answer
  // 50th, 90th, 99th percentile and maximum of the time between tokens.
  std::optional<std::array<int64_t, 4>> itl_us;
  int64_t num_stalls = 0;  // waits between tokens of more than a second
  int64_t queue_us = 0;
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
  int64_t ttft_us = -1;  // -1: no token came
  // What the engines say of the work for all choices, and of the way of the first one.
  int64_t prefill_device_ns = 0;
  int64_t decode_device_ns = 0;
  int64_t kv_block_ns = 0;
  int64_t disk_read_bytes = 0;
  int64_t disk_write_bytes = 0;
  int64_t cache_written_output_tokens = 0;
  int64_t handoff_bytes = 0;
  int64_t control_bytes = 0;
  int64_t load_after_us = 0;  // from the submission
  int64_t load_us = 0;        // 0: nothing was loaded
  int64_t transfer_us = 0;    // 0: no hand-off
  int64_t e2e_us = 0;
};

class RequestRecord {
 public:
  explicit RequestRecord(std::function<void(const RequestFacts&)> on_complete)
      : on_complete_(std::move(on_complete)) {}

  template <typename F>
  void Update(F&& change) {
    std::lock_guard lock(mutex_);
    change(facts_);
  }

  // Any thread, at any time before the last party leaves.
  void AddCpu(int64_t ns) { cpu_ns_.fetch_add(ns, std::memory_order_relaxed); }

  // The request holds a place of its key until ReleaseKey, at the latest until it completes. The
  // place is given back before the end of the answer is sent, so that a client that counts its own
  // requests is never refused.
  void HoldKey(const ApiKey* key) {
    std::lock_guard lock(mutex_);
    key_ = key;
  }
  void ReleaseKey() {
    std::lock_guard lock(mutex_);
    if (const ApiKey* key = std::exchange(key_, nullptr)) {
      key->running_requests.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  // One Leave belongs to the connection, one more to every Join that succeeded: false when the last
  // party has left.
  bool Join() {
    std::lock_guard lock(mutex_);
    if (parties_ == 0) return false;
    ++parties_;
    return true;
  }
  void Leave() {
    {
      std::lock_guard lock(mutex_);
      if (--parties_ > 0) return;
      facts_.cpu_ns = cpu_ns_.load(std::memory_order_relaxed);
    }
    ReleaseKey();
    on_complete_(facts_);
  }

 private:
  std::mutex mutex_;
  RequestFacts facts_;
  int parties_ = 1;
  const ApiKey* key_ = nullptr;
  std::atomic<int64_t> cpu_ns_{0};
  std::function<void(const RequestFacts&)> on_complete_;
};

// Charges a request with what the calling thread computes while this lives, and keeps its record
// open meanwhile.
class CpuCharge {
 public:
  explicit CpuCharge(std::shared_ptr<RequestRecord> record)
      : record_(std::move(record)), joined_(record_->Join()), begin_ns_(ThreadCpuNs()) {}
  ~CpuCharge() {
    if (!joined_) return;
    record_->AddCpu(ThreadCpuNs() - begin_ns_);
    record_->Leave();
  }
  CpuCharge(const CpuCharge&) = delete;
  CpuCharge& operator=(const CpuCharge&) = delete;

  // False: the request is over and nobody is left to charge.
  bool joined() const { return joined_; }

 private:
  const std::shared_ptr<RequestRecord> record_;
  const bool joined_;
  const int64_t begin_ns_;
};

}  // namespace deepinfer
