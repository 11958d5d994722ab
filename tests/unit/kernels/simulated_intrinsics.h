// Models of the AVX-512 instructions that the kernels use. A file that includes this before
// a kernel's source compiles that source to code for any CPU.
// Internal linkage on purpose (kernels/cpu/kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/denormals.h"

namespace deepinfer {
namespace {

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// sum[i] += the products of the pairs a[i] and b[i]; the caller flushes denormals.
[[gnu::noinline]] void AddPairProducts(const uint32_t* a, const uint32_t* b, float* sum) {
  for (int i = 0; i < 16; ++i) {
    sum[i] = std::fma(FloatOfBits(a[i] & 0xFFFF0000u), FloatOfBits(b[i] & 0xFFFF0000u), sum[i]);
    sum[i] = std::fma(FloatOfBits(a[i] << 16), FloatOfBits(b[i] << 16), sum[i]);
  }
}

// Two fused multiply-adds, the high words first; denormals are always zero.
inline __m512 SimulatedDotBf16(__m512 sum, __m512bh a, __m512bh b) {
  alignas(64) uint32_t left[16], right[16];
  alignas(64) float lanes[16];
  std::memcpy(left, &a, sizeof left);
  std::memcpy(right, &b, sizeof right);
  std::memcpy(lanes, &sum, sizeof lanes);
  {
    const FlushDenormalsScope flush;
    AddPairProducts(left, right, lanes);
  }
  return _mm512_load_ps(lanes);
}

// ---- instructions that the library lacks ----

inline __m256 SimulatedExtractFloats(__m512 v, int half) {
  float lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  return _mm256_loadu_ps(lanes + 8 * half);
}

// Elements of type T at p whose mask bits are set, zeros elsewhere.
template <typename Vec, typename T, typename Mask>
Vec SimulatedMaskedLoad(Mask mask, const void* p) {
  T lanes[sizeof(Vec) / sizeof(T)] = {};
  for (size_t i = 0; i < sizeof(Vec) / sizeof(T); ++i) {
    if ((mask >> i & 1) != 0) lanes[i] = static_cast<const T*>(p)[i];
  }
  Vec v;
  std::memcpy(&v, lanes, sizeof v);
  return v;
}

inline void SimulatedMaskedStore(float* p, __mmask16 mask, __m512 v) {
  float lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) p[i] = lanes[i];
  }
}

inline __m512 SimulatedMaskedFma(__m512 a, __m512 b, __m512 c, __mmask16 mask) {
  return _mm512_mask_blend_ps(mask, c, _mm512_fmadd_ps(a, b, c));
}

// Vectors of 512 bits as their halves.
template <typename Half>
struct SimulatedHalves {
  Half half[2];
};
template <typename Half, typename Vec>
SimulatedHalves<Half> SplitHalves(Vec v) {
  SimulatedHalves<Half> halves;
  std::memcpy(&halves, &v, sizeof halves);
  return halves;
}
template <typename Vec, typename Half>
Vec JoinHalves(Half low, Half high) {
  const SimulatedHalves<Half> halves{{low, high}};
  Vec v;
  std::memcpy(&v, &halves, sizeof v);
  return v;
}

inline __m512 SimulatedToFloats(__m512i v) {
  const auto [half] = SplitHalves<__m256i>(v);
  return JoinHalves<__m512>(_mm256_cvtepi32_ps(half[0]), _mm256_cvtepi32_ps(half[1]));
}
inline __m512i SimulatedToInts(__m512 v) {
  const auto [half] = SplitHalves<__m256>(v);
  return JoinHalves<__m512i>(_mm256_cvttps_epi32(half[0]), _mm256_cvttps_epi32(half[1]));
}
inline __m512i SimulatedWidenShorts(__m256i v) {
  return JoinHalves<__m512i>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                             _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
inline __m512i SimulatedWidenBytes(__m128i v) {
  return JoinHalves<__m512i>(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
}
inline __m512i SimulatedShiftSigned(__m512i v, int n) {
  const auto [half] = SplitHalves<__m256i>(v);
  return JoinHalves<__m512i>(_mm256_srai_epi32(half[0], n), _mm256_srai_epi32(half[1], n));
}

// The largest lane, from the upper half down.
inline float SimulatedLargestLane(__m512 v) {
  float lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int distance = 8; distance >= 1; distance /= 2) {
    for (int i = 0; i < distance; ++i) {
      lanes[i] = lanes[i] > lanes[i + distance] ? lanes[i] : lanes[i + distance];
    }
  }
  return lanes[0];
}

// The same choice of four lanes in every 128 bits.
inline __m512 SimulatedPermute(__m512 v, int choice) {
  float lanes[16], out[16];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < 16; ++i) out[i] = lanes[i / 4 * 4 + (choice >> (2 * (i % 4)) & 3)];
  return _mm512_loadu_ps(out);
}

}  // namespace
}  // namespace deepinfer

#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps deepinfer::SimulatedDotBf16
#define _mm512_extractf32x8_ps deepinfer::SimulatedExtractFloats
#define _mm512_maskz_loadu_ps deepinfer::SimulatedMaskedLoad<__m512, float>
#define _mm512_maskz_loadu_epi8 deepinfer::SimulatedMaskedLoad<__m512i, uint8_t>
#define _mm512_mask3_fmadd_ps deepinfer::SimulatedMaskedFma
#define _mm512_reduce_max_ps deepinfer::SimulatedLargestLane
#define _mm512_cvtepi32_ps deepinfer::SimulatedToFloats
#define _mm512_cvttps_epi32 deepinfer::SimulatedToInts
#define _mm512_cvtepu16_epi32 deepinfer::SimulatedWidenShorts
#define _mm512_cvtepu8_epi32 deepinfer::SimulatedWidenBytes
#define _mm512_srai_epi32 deepinfer::SimulatedShiftSigned
#define _mm512_permute_ps deepinfer::SimulatedPermute
#define _mm512_mask_storeu_ps deepinfer::SimulatedMaskedStore
#define _mm512_cmplt_epi32_mask(a, b) _mm512_cmpgt_epi32_mask(b, a)
// The library's name for it takes the arguments of another form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
