// The bf16dot family with the instruction that defines it, vdpbf16ps.

#include <immintrin.h>

#include "kernels/cpu/blocking_avx512.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/linear_families.h"
#include "kernels/cpu/unpack_pairs_avx512.h"

namespace deepinfer {

namespace {

struct PairDotFamily {
  using Isa = Avx512;
  using RowScope = NoScope;  // the instruction ignores MXCSR and always flushes
  static constexpr int64_t kElementsPerStep = 2;
  static constexpr int64_t kUnpackedBytes = kHalfCacheBytes;
  template <int kVecs>
  static constexpr int MaxRows() {
    return BlockingAvx512::MaxRows<kVecs>();
  }
  static __m512 Step(__m512 acc, __m512 w, __m512 x) {
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
  }
  static void Unpack(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride) {
    UnpackPairs::Run(w, row, rows, k0, length, out, stride);
  }
};

// Activation row: bf16 [k].
void ExpandBf16Row(const uint8_t* codes, const uint8_t* scales, int64_t k, std::byte* out) {
  const Fp8ToBf16Table* tables = Fp8ToBf16Tables();
  for (int64_t i = 0; i < k; i += 32) {
    const Fp8ToBf16Table& table = tables[scales[i / 32]];
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    // Widened to 16 bits with the code in both bytes: one lookup for each.
    const __m512i code = _mm512_shuffle_epi8(
        _mm512_cvtepu8_epi16(bytes), _mm512_broadcast_i32x4(_mm_setr_epi8(
                                         0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14)));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), code,
                                                 _mm512_load_si512(table.low + 64));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), code,
                                                  _mm512_load_si512(table.high + 64));
    const __m512i magnitude = _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAull, low, high);
    const __m512i sign = _mm512_and_si512(code, _mm512_set1_epi16(static_cast<short>(0x8000)));
    _mm512_storeu_si512(out + 2 * i, _mm512_or_si512(magnitude, sign));
  }
}

}  // namespace

void FillLinearAvx512Bf16(LinearKernels* kernels) {
  FillWidths<F32FmaFamily<Avx512, BlockingAvx512>>(kernels->f32fma);
  FillWidths<PairDotFamily>(kernels->bf16dot);
  kernels->max_rows_of_64 = BlockingAvx512::kMaxRowsOf64;
  kernels->max_rows_of_32 = BlockingAvx512::kMaxRowsOf32;
  kernels->dot_bytes_per_element = 2;
  kernels->expand_dot_row = ExpandBf16Row;
}

}  // namespace deepinfer
