#define FillAttentionAvx512Bf16 SimulateAttentionAvx512Bf16
#include "unit/kernels/simulated_intrinsics.h"

#include "kernels/cpu/attention_avx512bf16.cc"
