#define FillIndexAvx512 SimulateIndexAvx512
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/index_avx512.cc"
