// Attention on AVX-512 with vdpbf16ps.

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

namespace {

// A pair is one 32-bit lane, the first element in the lower half.
struct PackedPairs {
  using Isa = Avx512;
  using Unit = uint32_t;
  using Float = __m512;
  using Reg = __m512i;
  static constexpr int64_t kBlockUnits = 64;
  static constexpr int64_t kStepUnits = 16;
  static constexpr int kRegs = 4;
  static constexpr int kHeads = 4;
  static constexpr int kKeys = 4;
  static constexpr int kValueHeads = 8;
  static constexpr int64_t kGroupUnits = 16;
  static constexpr int64_t kGroupSums[2] = {0, 16};

  static void StorePair(Unit* step, int half, __m256 second, __m256 first) {
    const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(first), 16);
    const __m256i pairs = _mm256_blend_epi16(low, _mm256_castps_si256(second), 0xAA);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(step + 8 * half), pairs);
  }
  static Reg Load(const Unit* p) { return _mm512_loadu_si512(p); }
  static Float MultiplyAdd(Float sum, Reg a, Reg b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static void Keep(Reg*) {}

  // Weights of two keys become one lane, in place.
  static void PackWeights(float* weights, int n) {
    if (n % 2 != 0) weights[n] = 0.0f;
    for (int i = 0; i < n; i += 2) {
      uint32_t bits[2];
      std::memcpy(bits, weights + i, sizeof bits);
      const uint32_t pair = (bits[1] & 0xFFFF0000u) | bits[0] >> 16;
      std::memcpy(weights + i / 2, &pair, sizeof pair);
    }
  }
  template <int kCount>
  static void AddPair(const Unit* key0, const Unit* key1, const float* weights, int i,
                      Float (&sum)[kCount][2]) {
    const __m512i a = Load(key0), b = Load(key1);
    const __m512i second = _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(a, 16), b);
    const __m512i first = _mm512_mask_blend_epi16(0xAAAAAAAA, a, _mm512_slli_epi32(b, 16));
#pragma GCC unroll 8
    for (int h = 0; h < kCount; ++h) {
      int32_t pair;
      std::memcpy(&pair, weights + h * kTileKeys + i / 2, sizeof pair);
      const __m512i weight = _mm512_set1_epi32(pair);
      sum[h][0] = MultiplyAdd(sum[h][0], second, weight);
      sum[h][1] = MultiplyAdd(sum[h][1], first, weight);
    }
  }
};

}  // namespace

void FillAttentionAvx512Bf16(AttentionKernels* kernels) {
  kernels->fp32 = RunAttentionFp32<Avx512>;
  kernels->bf16 = RunAttentionBf16<PackedPairs>;
}

}  // namespace deepinfer
