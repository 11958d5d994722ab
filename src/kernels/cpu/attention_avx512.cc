#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillAttentionAvx512(AttentionKernels* kernels) { FillAttention<Avx512>(kernels); }

}  // namespace deepinfer
