// Owns live requests between the HTTP side and the workers: admission, queue, journal, recovery
// from lost workers, cancellation, drain (docs/cluster.md §4). With one in-process worker it is the
// embedded server's whole cluster.
// Thread rule: every method may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/admission_control.h"
#include "cluster/busy_shares.h"
#include "cluster/gateway_counters.h"
#include "cluster/live_request.h"
#include "cluster/prefix_probe.h"
#include "cluster/request_queue.h"
#include "cluster/route_forecasts.h"
#include "cluster/router.h"
#include "cluster/worker.h"
#include "cluster/worker_set.h"

namespace deepinfer {

struct GatewayOptions {
  int32_t max_queued_requests = 1024;  // beyond: resource_exhausted (HTTP 429)
  int32_t max_attempts = 8;            // of one request, then it is put into quarantine
  // How long a request that lost its worker waits for another one to appear.
  int64_t recovery_us = 60'000'000;
  // Promised to requests that are not of the batch class: what would miss it is refused with
  // resource_exhausted. 0: nothing.
  int64_t ttft_slo_us = 0;
  int64_t tpot_slo_us = 0;
  // What one tenant may use of the workers: compute seconds a second, and at once. 0: no limit.
  double tenant_budget = 0;
  double tenant_burst_s = 10;
  uint64_t random_seed = 0;  // of choices among equals; 0: drawn
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

  // Same contract as Worker::Submit, after admission and routing. A request for which no worker has
  // credit waits here. resource_exhausted also when it would wait past its queue deadline. A worker
  // that is lost is replaced by another one behind the sink's back. A request with a work id takes
  // over the run that another gateway left; that may wait for a moment.
  Status Submit(EngineRequest request, TokenSink sink);

  // When a refused request of the tenant may try again: 1 to 60 seconds.
  int32_t RetryAfterSeconds(uint64_t tenant = 0) const;

  void Cancel(std::string_view request_id);

  // The request is live without a token, and no worker has it or others wait at its worker too.
  bool Waits(std::string_view request_id) const;

  LoadReport Load() const;  // summed over workers and its own queue
  bool healthy() const;     // some worker is; never waits
  // Why a request would be refused, or wait for long, now; "" when it would not.
  std::string_view WhyNotReady() const;
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
  struct Waiting {
    LivePtr request;
    int64_t since_us = 0;
  };

  LivePtr Find(std::string_view request_id) const;  // null when it is not live
  // Takes over the run of the same work. not_found when there is none.
  Status Adopt(const LivePtr& request);
  // Begins a request that nobody runs yet, or lets it wait.
  Status Admit(const LivePtr& request);
  // The first attempt: a worker that is lost just now leaves the choice among the others. busy: it
  // must wait for credit.
  Status DispatchFirst(const LivePtr& request, bool* busy);
  // Begins an attempt. unavailable when no worker takes it.
  Status Dispatch(const LivePtr& request);
  Status Send(const LivePtr& request, const Router::Choice& choice);
  // Where the request runs whose prompt this one shares; both null when nowhere.
  LiveRequest::Placement PlacementOfLeader(const LiveRequest& request);
  std::optional<Router::Cost> CostOf(const LiveRequest& request) const;
  TokenSink SinkOf(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg);
  void OnEvent(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg, TokenEvent event);
  // Tells the router what became of its choice.
  void NoteOutcome(LiveRequest::Outcome outcome, LiveRequest::Leg leg,
                   const LiveRequest::Placement& placement, FinishReason finish, StatusCode code);
  void Forget(const LivePtr& request);
  // Ends a request that no worker runs.
  void End(const LivePtr& request, FinishReason reason, Status status);

  // The keeper finds workers for requests that wait or lost theirs, and sweeps.
  void Keep();
  void RetryWaiting(int64_t now_us);
  // Ends what waits in the queue for nothing, and sends what workers have credit for.
  void ServeQueue();
  void SendQueued(RequestQueue::Waiter waiter, const Router::Choice& choice,
                  const std::optional<Router::Cost>& cost);
  void LookAtShares(int64_t now_us);
  void LookAtQueue();  // soon

  const GatewayOptions options_;
  const Clock* const clock_;
  WorkerSet workers_;
  const WorkerInfo info_;
  Router router_;
  AdmissionControl admission_;
  RequestQueue queue_;
  PrefixProbe prefixes_;
  RouteForecasts forecasts_;
  std::atomic<bool> draining_{false};

  mutable std::mutex mutex_;  // never held while a worker or a sink is called
  std::condition_variable changed_;
  std::unordered_map<std::string, LivePtr> live_;
  std::vector<LivePtr> lost_;  // their worker, just now
  GatewayCounters counters_;
  BusyShares shares_;
  bool queue_changed_ = false;
  bool stop_ = false;
  std::vector<Waiting> waiting_;     // for another worker; keeper only
  int64_t no_worker_since_us_ = -1;  // for the queue, < 0: there is one; keeper only
  std::thread keeper_;
};

}  // namespace deepinfer
