// Whether a gateway takes a request: room in the queues, the wait they mean, and what is promised
// to its class (docs/cluster.md §4). Thread rule: any thread. Owner: Gateway.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/queue_forecast.h"
#include "cluster/worker_set.h"
#include "engine/request.h"
#include "sched/shedding.h"

namespace deepinfer {

struct AdmissionOptions {
  int32_t max_queued_requests = 1024;
  int64_t ttft_slo_us = 0;
  int64_t tpot_slo_us = 0;
};

// Of the gateway's own queue.
struct GatewayQueueState {
  int32_t requests = 0;
  int64_t prompt_tokens = 0;
  double ahead_us = 0;  // cost of what goes before the request in question
};

class AdmissionControl {
 public:
  // workers and clock are borrowed.
  AdmissionControl(const AdmissionOptions& options, const WorkerSet* workers, const Clock* clock)
      : options_(options), workers_(workers), clock_(clock) {}

  // resource_exhausted: it may not wait here, or would miss its time.
  Status Check(const EngineRequest& request, const GatewayQueueState& queue);
  // When a refused request may try again; `at_least_s` is a wait of its own.
  int32_t RetryAfterSeconds(const GatewayQueueState& queue, double at_least_s) const;
  int64_t num_shed() const { return num_shed_.load(std::memory_order_relaxed); }

 private:
  // Notes the state of the queues and returns the wait they mean; nothing while unknown.
  std::optional<double> ForecastWaitSeconds(const GatewayQueueState& queue) const;
  Status CheckPromise(const EngineRequest& request, const GatewayQueueState& queue);

  const AdmissionOptions options_;
  const WorkerSet* const workers_;
  const Clock* const clock_;
  std::atomic<double> predicted_ttft_s_{0};  // of the last request that was refused
  std::atomic<int64_t> num_shed_{0};
  mutable std::mutex mutex_;
  mutable QueueSum queues_;  // under mutex_, as all below
  mutable QueueForecast forecast_;
  Shedding ttft_shedding_;
  Shedding tpot_shedding_;
};

}  // namespace deepinfer
