// Owns live requests between the HTTP side and the workers: admission, routing, cancellation,
// drain. With one in-process worker it is the embedded server's whole cluster.
// Thread rule: every method may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/queue_forecast.h"
#include "cluster/worker.h"

namespace deepinfer {

struct GatewayOptions {
  int32_t max_queued_requests = 1024;  // beyond: resource_exhausted (HTTP 429)
};

class Gateway {
 public:
  // workers must not be empty and must serve the same model. clock is borrowed.
  Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers, const Clock* clock);
  ~Gateway();

  const WorkerInfo& info() const;

  // Same contract as Worker::Submit, after admission and routing. resource_exhausted also when the
  // request would wait past its queue deadline.
  Status Submit(EngineRequest request, TokenSink sink);

  // When a refused request may try again: 1 to 60 seconds.
  int32_t RetryAfterSeconds() const;

  void Cancel(std::string_view request_id);

  LoadReport Load() const;                           // summed over workers
  bool healthy() const;                              // some worker is; never waits
  std::vector<EngineStatistics> Statistics() const;  // one per worker
  std::vector<StoreStatistics> Stores() const;       // one per worker

  // Worker::Profile of worker `index`; invalid_request when there is no such worker.
  Status Profile(size_t index, int32_t num_steps, int64_t deadline_us, ProfileSink done);

  // True once Drain began; Submit then answers unavailable.
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  void Drain(int64_t deadline_us);

 private:
  // Notes the state of the queue and returns the wait it means; nothing while unknown.
  std::optional<double> ForecastWaitSeconds() const;

  GatewayOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  const Clock* clock_;
  mutable std::mutex forecast_mutex_;
  mutable QueueForecast forecast_;  // under forecast_mutex_
  std::atomic<bool> draining_{false};
};

}  // namespace deepinfer
