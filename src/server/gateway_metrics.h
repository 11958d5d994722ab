// Prometheus series of the gateway (api.md §16).
// Thread rule: any thread.
// Owner: ServerMetrics.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cluster/gateway_counters.h"
#include "server/metrics_compat.h"

namespace prometheus {
class Registry;
}

namespace deepinfer {

class GatewayMetrics {
 public:
  // registry is borrowed; labels are those every series has, without `engine`.
  GatewayMetrics(prometheus::Registry* registry, const std::map<std::string, std::string>& labels,
                 MetricsCompat compat);
  ~GatewayMetrics();

  // Brings every series up to the given state.
  void Update(const GatewayCounters& now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
