// A worker without work shows that it still could: one token of its own every ten seconds. While
// that does not come the worker counts as one whose steps do not come back (docs/cluster.md §5).
// Thread rule: Look by one thread, everything else by any. Owner: WorkerService.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "cluster/worker.h"

namespace deepinfer {

struct SelfProbeOptions {
  int64_t idle_us = 0;           // without work for so long it tries itself; 0: never
  int64_t limit_us = 3'000'000;  // as for gateways: what takes longer hangs
};

class SelfProbe {
 public:
  // worker and clock are borrowed.
  SelfProbe(const SelfProbeOptions& options, Worker* worker, const Clock* clock);
  ~SelfProbe();  // ends a probe that runs; its last event may come later

  // How the worker stands now; several times a second.
  void Look(const LoadReport& load);

  // False from the limit of a probe, or its failure, to the end of the next one that goes well.
  bool passes() const;
  // Of the probe that runs now, which nobody asked for: 0 or 1.
  int32_t num_running() const;

 private:
  // Shared with the sink of a probe, which the engine may hold for longer.
  struct State {
    std::mutex mutex;
    bool running = false;
    bool failed = false;
    int64_t since_us = 0;  // the probe that runs began, or work or a probe was last seen
  };

  void Begin();

  const SelfProbeOptions options_;
  Worker* const worker_;
  const Clock* const clock_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  int64_t num_probes_ = 0;
  std::string id_;  // of the last probe
};

}  // namespace deepinfer
