// Prometheus series of the persistent caches (api.md §16).
// Thread rule: any thread. Owner: ServerMetrics.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/store_statistics.h"
#include "server/metrics_compat.h"

namespace prometheus {
class Registry;
}

namespace deepinfer {

class StoreMetrics {
 public:
  // registry is borrowed; labels are those every series has, without `engine`.
  StoreMetrics(prometheus::Registry* registry, const std::map<std::string, std::string>& labels,
               MetricsCompat compat);
  ~StoreMetrics();

  // Brings every series up to the given state; the store of engine i has the label engine="i".
  void Update(const std::vector<StoreStatistics>& stores);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
