// Linears on AVX-512 without the bf16 dot product: both families with fp32 fma.

#include "kernels/cpu/blocking_avx512.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_dot_avx512.h"
#include "kernels/cpu/linear_families.h"

namespace deepinfer {

namespace {

struct DotFloats : DotAvx512 {
  using Reg = __m512;
  static constexpr int kSteps = 8;  // for q = 0..3: k = 8j + 4 + q, then k = 8j + q
  static constexpr int64_t kBlockBytes = kSteps * kRegBytes;
  static constexpr int64_t kChunkBlocks = 2;  // 16 KB of weights, 6 KB of values

  static Reg LoadReg(const std::byte* p) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static void StoreReg(std::byte* p, Reg v) { _mm512_storeu_ps(reinterpret_cast<float*>(p), v); }
  static Acc Step(Acc sum, Reg w, Reg x) { return _mm512_fmadd_ps(w, x, sum); }
  static Reg RowValue(Reg v, bool) { return v; }
  static Reg PlainRowValue(Reg v) { return v; }

  static void FromPairs(const __m512i (&pairs)[4], Reg (&w)[kSteps]) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      w[2 * q] = _mm512_castsi512_ps(_mm512_and_si512(pairs[q], high));
      w[2 * q + 1] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs[q], 16));
    }
  }
  static void Scale(Acc scale, Reg (&w)[kSteps]) {
#pragma GCC unroll 8
    for (Reg& v : w) v = _mm512_mul_ps(v, scale);
  }
};

}  // namespace

void FillLinearAvx512(LinearKernels* kernels) {
  FillWidths<F32FmaFamily<Avx512, BlockingAvx512>>(kernels->f32fma);
  kernels->max_rows_of_64 = BlockingAvx512::kMaxRowsOf64;
  kernels->max_rows_of_32 = BlockingAvx512::kMaxRowsOf32;
  FillDot<Fp8Avx512<DotFloats>, Fp4Avx512<DotFloats>, Bf16Avx512<DotFloats>>(kernels);
}

}  // namespace deepinfer
