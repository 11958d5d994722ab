#define FillLinearAvx512 SimulateLinearAvx512
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/linear_avx512.cc"
