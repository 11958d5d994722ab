// Linears on AVX-512 without the bf16 dot product: both families with fp32 fma.

#include "kernels/cpu/blocking_avx512.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_families.h"

namespace deepinfer {

void FillLinearAvx512(LinearKernels* kernels) {
  FillWidths<F32FmaFamily<Avx512, BlockingAvx512>>(kernels->f32fma);
  FillWidths<EmulatedDotFamily<Avx512, BlockingAvx512>>(kernels->bf16dot);
  kernels->max_rows_of_64 = BlockingAvx512::kMaxRowsOf64;
  kernels->max_rows_of_32 = BlockingAvx512::kMaxRowsOf32;
  kernels->dot_bytes_per_element = 4;
  kernels->expand_dot_row = ExpandSwappedRow<Avx512>;
}

}  // namespace deepinfer
