#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillAttentionAvx512(AttentionKernels* kernels) {
  kernels->fp32 = RunAttentionFp32<Avx512>;
  kernels->bf16 = RunAttentionBf16<Fp32Pairs<Avx512>>;
}

}  // namespace deepinfer
