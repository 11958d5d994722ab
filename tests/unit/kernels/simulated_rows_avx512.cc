#define FillRowAvx512 SimulateRowAvx512
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/rows_avx512.cc"
