#define FillLinearAvx512Bf16 SimulateLinearAvx512Bf16
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/linear_avx512bf16.cc"
