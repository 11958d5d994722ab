// Kernel tables of AVX-512 levels on models of their instructions, for CPUs that lack them.
// Thread rule: the tables are immutable.
#pragma once

#include <string>

#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/kernel_table.h"
#include "unit/kernels/kernel_test_util.h"

namespace deepinfer {

void SimulateLinearAvx512(LinearKernels* kernels);
void SimulateLinearAvx512Bf16(LinearKernels* kernels);
void SimulateAttentionAvx512(AttentionKernels* kernels);
void SimulateAttentionAvx512Bf16(AttentionKernels* kernels);
void SimulateIndexAvx512(IndexKernels* kernels);
void SimulateRowAvx512(RowKernels* kernels);

namespace test {

inline CpuKernels SimulatedKernels(IsaLevel level) {
  CpuKernels kernels;
  if (level == IsaLevel::kAvx512Bf16) {
    SimulateLinearAvx512Bf16(&kernels.linear);
    SimulateAttentionAvx512Bf16(&kernels.attention);
  } else {
    SimulateLinearAvx512(&kernels.linear);
    SimulateAttentionAvx512(&kernels.attention);
  }
  SimulateRowAvx512(&kernels.row);
  SimulateIndexAvx512(&kernels.index);
  return kernels;
}

// ForEachBackend, then the levels that this CPU lacks on models of their instructions.
template <typename Fn>
void ForEachLevel(int max_threads, Fn&& fn) {
  ForEachBackend(max_threads, fn);
  ThreadPool pool(1);
  for (IsaLevel level : {IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
    if (level <= DetectIsaLevel()) continue;
    SCOPED_TRACE("simulated " + std::string(IsaLevelName(level)));
    const CpuKernels kernels = SimulatedKernels(level);
    CpuOperators ops(kernels, &pool);
    fn(ops);
  }
}

}  // namespace test
}  // namespace deepinfer
