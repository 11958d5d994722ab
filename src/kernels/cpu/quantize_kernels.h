// The FP8 quantiser of activations and window rows (docs/model.md §11.2) on 256-bit registers:
// twin of QuantizeFp8Group32 of tensor/quantize.h.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace deepinfer {
namespace {

// E4M3 codes of 8 finite values of magnitude up to 448, in 32-bit lanes: nearest even, sign of a
// zero kept.
inline __m256i E4m3Codes(__m256 y) {
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  // Normal codes: 20 mantissa bits are dropped, then the bias goes from 127 to 7.
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x7FFFF)), odd);
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  // Subnormal codes: an ulp of 2^14 is the code step 2^-9, so the addition itself rounds.
  const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f));
  const __m256i subnormal =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(0x1p14f)));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), magnitude);  // < 2^-6
  return _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, is_small), sign);
}

// Largest of 8 lanes below 2^31.
inline uint32_t LargestLane(__m256i v) {
  __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(a));
}

// One group of 32: codes and the code of its scale.
inline void QuantizeFp8GroupOf32(const float* x, uint8_t* codes, uint8_t* scale) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256 v[4];
  __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), mask));
  }
  const uint32_t amax_bits = LargestLane(largest);
  if (amax_bits >= 0x7F800000u) [[unlikely]] {  // infinity or NaN
    *scale = 0xFF;
    std::memset(codes, 0, 32);
    return;
  }
  float amax;
  std::memcpy(&amax, &amax_bits, sizeof amax);
  const float scaled = (amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f);
  uint32_t scaled_bits;
  std::memcpy(&scaled_bits, &scaled, sizeof scaled_bits);
  // The next power of two; the code of a scale is its biased exponent.
  const uint32_t exponent = (scaled_bits + 0x7FFFFFu) >> 23;
  *scale = static_cast<uint8_t>(exponent);
  const uint32_t inverse_bits = (254 - exponent) << 23;
  const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(inverse_bits)));
  __m256i code[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) code[i] = E4m3Codes(_mm256_mul_ps(v[i], inverse));
  const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(code[0], code[1]),
                                            _mm256_packus_epi32(code[2], code[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(bytes, order));
}

// n values, a multiple of 32.
inline void QuantizeFp8Row(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < n; i += 32) QuantizeFp8GroupOf32(x + i, codes + i, scales + i / 32);
}

}  // namespace
}  // namespace deepinfer
