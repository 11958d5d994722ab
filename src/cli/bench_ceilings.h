// What this machine can do at most: read bandwidth and multiply-add peaks, measured.
// Thread rule: main thread; starts threads of its own through the given pool.
#pragma once

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace deepinfer {

struct Ceilings {
  double read_gb_per_s = 0;     // sequential read of memory far larger than the caches
  double fp32_gflop_per_s = 0;  // fused multiply-add on registers
  double bf16_gflop_per_s = 0;  // vdpbf16ps; 0 where the CPU has none
};

// Takes about half a second. The figures are the best of several rounds.
Ceilings MeasureCeilings(IsaLevel isa, ThreadPool* pool);

}  // namespace deepinfer
