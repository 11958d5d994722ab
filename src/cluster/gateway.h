// Owns live requests between the HTTP side and the workers: admission, routing, cancellation,
// drain. With one in-process worker it is the embedded server's whole cluster.
// Thread rule: every method may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cluster/worker.h"

namespace deepinfer {

struct GatewayOptions {
  int32_t max_queued_requests = 1024;  // beyond: resource_exhausted (HTTP 429)
};

class Gateway {
 public:
  // workers must not be empty and must serve the same model.
  Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers);
  ~Gateway();

  const WorkerInfo& info() const;

  // Same contract as Worker::Submit, after admission and routing.
  Status Submit(EngineRequest request, TokenSink sink);

  void Cancel(std::string_view request_id);

  LoadReport Load() const;  // summed over workers

  // True once Drain began; Submit then answers unavailable.
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  void Drain(int64_t deadline_us);

 private:
  GatewayOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> draining_{false};
};

}  // namespace deepinfer
