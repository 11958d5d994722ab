// Models of the AVX-512 instructions that the linear kernels use. A file that includes this before
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

}  // namespace
}  // namespace deepinfer

#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps deepinfer::SimulatedDotBf16
#define _mm512_extractf32x8_ps deepinfer::SimulatedExtractFloats
#define _mm512_maskz_loadu_ps deepinfer::SimulatedMaskedLoad<__m512, float>
#define _mm512_maskz_loadu_epi8 deepinfer::SimulatedMaskedLoad<__m512i, uint8_t>
#define _mm512_mask_storeu_ps deepinfer::SimulatedMaskedStore
#define _mm512_cmplt_epi32_mask(a, b) _mm512_cmpgt_epi32_mask(b, a)
// The library's name for it takes the arguments of another form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
