// What this machine can do at most: read bandwidth and multiply-add peaks, measured.
// Thread rule: main thread; the work runs on the given pool.
#pragma once

#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace deepinfer {

// Samples of every round. The instructions are the widest that level and CPU allow; each figure
// names its AVX2 form.
struct CeilingSamples {
  std::vector<double> read_gb_per_s;     // sequential read of memory far larger than the caches
  std::vector<double> fp32_gflop_per_s;  // fused multiply-add on registers
  std::vector<double> bf16_gflop_per_s;  // vdpbf16ps; AVX2: widen to fp32, two multiply-adds
  std::vector<double> int8_gop_per_s;    // vpdpbusd; AVX2: vpmaddubsw, vpmaddwd, vpaddd
};

// The best of the samples: what other figures are compared with.
struct Ceilings {
  double read_gb_per_s = 0;
  double fp32_gflop_per_s = 0;
  double bf16_gflop_per_s = 0;
  double int8_gop_per_s = 0;
};

// About a third of a second a round, and memory of 256 MiB meanwhile. level: at most the CPU's.
CeilingSamples MeasureCeilings(IsaLevel level, int rounds, ThreadPool* pool);
Ceilings BestOf(const CeilingSamples& samples);

}  // namespace deepinfer
