#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillAttentionAvx2(AttentionKernels* kernels) { FillAttention<Avx2>(kernels); }

}  // namespace deepinfer
