// Prometheus series fed from the statistics of the engines (api.md §16).
// Thread rule: any thread.
// Owner: ServerMetrics.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/statistics.h"
#include "server/metrics_compat.h"

namespace prometheus {
class Registry;
}

namespace deepinfer {

class EngineMetrics {
 public:
  // registry is borrowed; labels are those every series has, without `engine`.
  EngineMetrics(prometheus::Registry* registry, const std::map<std::string, std::string>& labels,
                MetricsCompat compat);
  ~EngineMetrics();

  // Brings every series up to the given state; an engine has its name as the label
  // `engine`, or its place in the list. The series of those that are missing end.
  void Update(const std::vector<EngineStatistics>& engines);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
