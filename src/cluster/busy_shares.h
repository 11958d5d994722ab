// How evenly the workers of a role share its work: the time in steps of the busiest one over the
// mean of all (docs/cluster.md §4).
// Thread rule: one caller at a time. Owner: Gateway.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

#include "cluster/worker.h"

namespace deepinfer {

class BusyShares {
 public:
  struct WorkerTime {
    uint64_t incarnation = 0;  // 0: it has not told yet
    WorkerRole role = WorkerRole::kAll;
    int64_t step_us = 0;  // in steps since its start
  };

  // The last look is long enough ago.
  bool IsDue(int64_t now_us) const;
  // Takes in how the workers stand now; what is not due is skipped.
  void Observe(int64_t now_us, std::span<const WorkerTime> workers);

  // Over the last minute, by role: 1 when all did the same; 0 while none did anything. Workers that
  // came later count with what they did since.
  using ByRole = std::array<double, kNumWorkerRoles>;
  ByRole busiest() const;

 private:
  struct Look {
    int64_t at_us = 0;
    std::unordered_map<uint64_t, WorkerTime> workers;  // by incarnation
  };
  std::deque<Look> looks_;  // the first is as old as the window
};

}  // namespace deepinfer
