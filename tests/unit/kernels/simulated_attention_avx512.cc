#define FillAttentionAvx512 SimulateAttentionAvx512
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/attention_avx512.cc"
