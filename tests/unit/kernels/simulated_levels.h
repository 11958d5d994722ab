// Kernel tables whose linears are the AVX-512 ones on models of their instructions; the rest is
// AVX2's.
// Thread rule: the tables are immutable.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace deepinfer {

void SimulateLinearAvx512(LinearKernels* kernels);
void SimulateLinearAvx512Bf16(LinearKernels* kernels);

}  // namespace deepinfer
