// Linears on AVX2: both families with fp32 fma.

#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_dot_avx2.h"
#include "kernels/cpu/linear_families.h"
#include "kernels/cpu/linear_integers_avx2.h"

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
  kernels->max_rows_of_64 = 1;
  kernels->max_rows_of_32 = 2;
  FillDot<Fp8Avx2, Fp4Avx2, Bf16Avx2>(kernels);
}

}  // namespace deepinfer
