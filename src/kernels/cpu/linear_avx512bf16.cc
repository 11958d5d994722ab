// Linears on AVX-512 with the instruction that defines the bf16dot family, vdpbf16ps.

#include "kernels/cpu/blocking_avx512.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_dot_avx512.h"
#include "kernels/cpu/linear_families.h"

namespace deepinfer {

namespace {

struct DotPairs : DotAvx512 {
  using Reg = __m512i;
  static constexpr int kSteps = 4;
  static constexpr int64_t kBlockBytes = kSteps * kRegBytes;
  static constexpr int64_t kChunkBlocks = 4;  // 16 KB of weights, 6 KB of values

  static Reg LoadReg(const std::byte* p) { return _mm512_loadu_si512(p); }
  static void StoreReg(std::byte* p, Reg v) { _mm512_storeu_si512(p, v); }
  static Acc Step(Acc sum, Reg w, Reg x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
  static Reg RowValue(Reg v, bool) { return v; }
  static Reg PlainRowValue(Reg v) { return v; }

  static void FromPairs(const __m512i (&pairs)[4], Reg (&w)[kSteps]) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) w[q] = pairs[q];
  }
  // Adds the exponents of the scales to those of all words but zeros.
  static void Scale(Acc scale, Reg (&w)[kSteps]) {
    const __m512i high = _mm512_sub_epi32(_mm512_castps_si512(scale), _mm512_set1_epi32(127 << 23));
    const __m512i both = _mm512_or_si512(high, _mm512_srli_epi32(high, 16));
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
#pragma GCC unroll 4
    for (Reg& v : w) {
      v = _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(v, magnitude), v, both);
    }
  }
};

}  // namespace

void FillLinearAvx512Bf16(LinearKernels* kernels) {
  FillWidths<F32FmaFamily<Avx512, BlockingAvx512>>(kernels->f32fma);
  kernels->max_rows_of_64 = BlockingAvx512::kMaxRowsOf64;
  kernels->max_rows_of_32 = BlockingAvx512::kMaxRowsOf32;
  FillDot<Fp8Avx512<DotPairs>, Fp4Avx512<DotPairs>, Bf16Avx512<DotPairs>>(kernels);
}

}  // namespace deepinfer
