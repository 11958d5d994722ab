// Owns live requests between the HTTP side and the workers: admission, routing, journal, recovery
// from lost workers, cancellation, drain (docs/cluster.md §4). With one in-process worker it is the
// embedded server's whole cluster.
// Thread rule: every method may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/live_request.h"
#include "cluster/queue_forecast.h"
#include "cluster/worker.h"
#include "cluster/worker_set.h"
#include "sched/output_lengths.h"
#include "sched/routing.h"
#include "sched/shedding.h"

namespace deepinfer {

struct GatewayOptions {
  int32_t max_queued_requests = 1024;  // beyond: resource_exhausted (HTTP 429)
  int32_t max_attempts = 8;            // of one request, then it fails as unavailable
  // How long a request that lost its worker waits for another one to appear.
  int64_t recovery_us = 60'000'000;
  // Promised to requests that are not of the batch class: what would miss it is refused with
  // resource_exhausted. 0: nothing.
  int64_t ttft_slo_us = 0;
  int64_t tpot_slo_us = 0;
  uint64_t random_seed = 0;  // of choices among equals; 0: drawn
};

struct GatewayCounters {
  int64_t redispatched = 0;  // attempts after the first
  int64_t migrated = 0;      // of these, with tokens the client already had
  int64_t hand_offs = 0;     // attempts split between a prefill and a decode worker
  int64_t adopted = 0;       // runs taken over from a gateway that was lost
  int64_t shed = 0;          // requests refused because they would miss what is promised
};

class Gateway {
 public:
  // workers must not be empty and must serve the same model; the first says which. clock is
  // borrowed.
  Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers, const Clock* clock);
  ~Gateway();  // ends what is live

  const WorkerInfo& info() const { return info_; }

  // As WorkerSet::Follow.
  void FollowWorkers(const std::vector<std::string>& endpoints, const WorkerSet::Make& make) {
    workers_.Follow(endpoints, make);
  }

  // Same contract as Worker::Submit, after admission and routing. resource_exhausted also when the
  // request would wait past its queue deadline. A worker that is lost is replaced by another one
  // behind the sink's back. A request with a work id takes over the run that another gateway left;
  // that may wait for a moment.
  Status Submit(EngineRequest request, TokenSink sink);

  // When a refused request may try again: 1 to 60 seconds.
  int32_t RetryAfterSeconds() const;

  void Cancel(std::string_view request_id);

  LoadReport Load() const;                           // summed over workers
  bool healthy() const;                              // some worker is; never waits
  std::vector<EngineStatistics> Statistics() const;  // one per worker
  std::vector<StoreStatistics> Stores() const;       // one per worker
  GatewayCounters counters() const;

  // Worker::Profile of worker `index`; invalid_request when there is no such worker.
  Status Profile(size_t index, int32_t num_steps, int64_t deadline_us, ProfileSink done);

  // True once Drain began; Submit then answers unavailable.
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  void Drain(int64_t deadline_us);

 private:
  using LivePtr = std::shared_ptr<LiveRequest>;
  struct Candidates;
  struct Waiting {
    LivePtr request;
    int64_t since_us = 0;
  };

  // Whether a request that nobody runs yet may wait and run.
  Status CheckRoom(const EngineRequest& request);
  // Where the request would run now; both null when nowhere.
  LiveRequest::Placement Place(const LiveRequest& request);
  // Whether it would keep what is promised to its class.
  Status CheckPromise(const EngineRequest& request);
  // Takes over the run of the same work. not_found when there is none.
  Status Adopt(const LivePtr& request);
  // Begins an attempt. unavailable when no worker takes it.
  Status Dispatch(const LivePtr& request);
  // The first one: a worker that is lost just now leaves the choice among the others.
  Status DispatchFirst(const LivePtr& request);
  TokenSink SinkOf(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg);
  void OnEvent(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg, TokenEvent event);
  void Forget(const LivePtr& request);
  // Ends a request that no worker runs.
  void End(const LivePtr& request, FinishReason reason, Status status);

  // The keeper finds workers for requests that lost theirs, and sweeps.
  void Keep();
  void RetryWaiting(int64_t now_us);

  // Notes the state of the queue and returns the wait it means; nothing while unknown.
  std::optional<double> ForecastWaitSeconds() const;
  // Positions that a request of so many holds before it ends, if it ends as most did lately.
  int64_t ExpectedTokens(const LiveRequest& request) const;

  const GatewayOptions options_;
  const Clock* const clock_;
  WorkerSet workers_;
  const WorkerInfo info_;
  mutable std::mutex forecast_mutex_;
  mutable QueueSum queues_;                  // under forecast_mutex_
  mutable QueueForecast forecast_;           // under forecast_mutex_
  Shedding ttft_shedding_;                   // under forecast_mutex_
  Shedding tpot_shedding_;                   // under forecast_mutex_
  OutputLengths output_lengths_;             // under forecast_mutex_
  std::minstd_rand random_;                  // under forecast_mutex_
  std::atomic<double> predicted_ttft_s_{0};  // of the last request that was refused
  std::atomic<bool> draining_{false};

  mutable std::mutex mutex_;  // never held while a worker or a sink is called
  std::condition_variable changed_;
  std::unordered_map<std::string, LivePtr> live_;
  std::vector<LivePtr> lost_;  // their worker, just now
  GatewayCounters counters_;
  bool stop_ = false;
  std::vector<Waiting> waiting_;  // for another worker; keeper only
  std::thread keeper_;
};

}  // namespace deepinfer
