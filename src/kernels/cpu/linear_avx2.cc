// Linears on AVX2: both families with fp32 fma.

#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_families.h"

namespace deepinfer {

namespace {

// 16 registers: a vector of 16 outputs takes two, so 8 or 10 accumulators beside the weights and
// one broadcast value.
struct Blocking {
  template <int kVecs>
  static constexpr int MaxRows() {
    return kVecs == 1 ? 4 : (kVecs == 2 ? 2 : 1);
  }
};

}  // namespace

void FillLinearAvx2(LinearKernels* kernels) {
  FillWidths<F32FmaFamily<Avx2, Blocking>>(kernels->f32fma);
  FillWidths<EmulatedDotFamily<Avx2, Blocking>>(kernels->bf16dot);
  kernels->max_rows_of_64 = 1;
  kernels->max_rows_of_32 = 2;
  kernels->dot_bytes_per_element = 4;
  kernels->expand_dot_row = ExpandSwappedRow<Avx2>;
}

}  // namespace deepinfer
