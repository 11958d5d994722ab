#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillAttentionAvx2(AttentionKernels* kernels) {
  kernels->fp32 = RunAttentionFp32<Avx2>;
  kernels->bf16 = RunAttentionBf16<Fp32Pairs<Avx2>>;
}

}  // namespace deepinfer
