// Flags of how steps are planned and how parked requests go on (engine options of the planner).
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "engine/options.h"

namespace CLI {
class App;
}

namespace deepinfer {

class SchedulingFlags {
 public:
  // Some flags are read straight into the options, which outlive the parsing; Apply adds the rest.
  void Register(CLI::App* command, EngineOptions* options);
  void Apply(EngineOptions* options) const;

 private:
  double tpot_target_ms_ = 1e-3 * static_cast<double>(kTpotTargetUs);
  std::vector<double> ttft_target_ms_{1e-3 * static_cast<double>(kTtftTargetInteractiveUs),
                                      1e-3 * static_cast<double>(kTtftTargetAgentUs),
                                      1e-3 * static_cast<double>(kTtftTargetBatchUs)};
  double peak_gflops_ = 0;
  std::string resume_ = "exact";
};

}  // namespace deepinfer
