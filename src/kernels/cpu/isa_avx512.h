// 16-lane vectors on AVX-512: the operations the kernel templates are written in.
// Internal linkage on purpose (kernel_table.h). Only for files compiled with AVX-512 flags.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deepinfer {
namespace {

struct Avx512 {
  // ---- 16 floats ----
  using Vec = __m512;

  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Set1(float x) { return _mm512_set1_ps(x); }
  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec LoadPartial(const float* p, int n) { return _mm512_maskz_loadu_ps(Mask(n), p); }
  static void StorePartial(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, Mask(n), v); }
  // The four bytes at p in every lane.
  static Vec Broadcast(const std::byte* p) {
    return _mm512_broadcastss_ps(_mm_load_ss(reinterpret_cast<const float*>(p)));
  }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  // b where a is NaN or not greater: x > y ? x : y.
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  // Lanes 2i and 2i+1 exchanged.
  static Vec SwapPairs(Vec v) { return _mm512_permute_ps(v, 0xB1); }
  // Lane tree of Lane16: distance 8, 4, 2, 1.
  static float LaneSum(Vec v) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  // The largest lane.
  static float LaneMax(Vec v) { return _mm512_reduce_max_ps(v); }
  // a·b + c in the first n lanes, c in the others.
  static Vec FmaPartial(Vec a, Vec b, Vec c, int n) {
    return _mm512_mask3_fmadd_ps(a, b, c, Mask(n));
  }
  // x < bound ? a : b, b for a NaN; and x > bound.
  static Vec SelectLess(Vec x, float bound, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, Set1(bound), _CMP_LT_OQ), b, a);
  }
  static Vec SelectGreater(Vec x, float bound, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, Set1(bound), _CMP_GT_OQ), b, a);
  }
  // p · 2^n for integral n, in two exact powers (det_math.h ScaleF).
  static Vec ScalePow2(Vec p, Vec n) {
    const __m512i i = _mm512_cvttps_epi32(n);
    const __m512i i1 = _mm512_srai_epi32(i, 1);
    return _mm512_mul_ps(_mm512_mul_ps(p, Pow2(i1)), Pow2(_mm512_sub_epi32(i, i1)));
  }
  static Vec Pow2(__m512i n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  // Nearest bf16 values, ties to even; a NaN keeps its upper bits and is quiet. Not the conversion
  // instruction, which flushes denormals.
  static Vec RoundBf16(Vec x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), tie);
    const __m512i rounded = _mm512_mask_or_epi32(sum, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                                                 _mm512_set1_epi32(0x00400000));
    return _mm512_castsi512_ps(
        _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static Vec LoadBf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  // 16 E2M1 codes in 8 bytes, low nibble first.
  static Vec LoadE2m1(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i codes = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    return LookupE2m1(_mm512_cvtepu8_epi32(codes), 0);
  }
  static __mmask16 Mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

  // ---- one register of 32-bit lanes, the unit in which weights are unpacked ----
  static constexpr int kLanes = 16;
  using Int = __m512i;
  using Float = __m512;

  // The first n <= 64 bytes at p, zeros behind them.
  static Int LoadBytes(const uint8_t* p, int64_t n) {
    return n >= 64 ? _mm512_loadu_si512(p) : LoadFew(p, n);
  }
  static Int LoadFew(const uint8_t* p, int64_t n) {
    return _mm512_maskz_loadu_epi8(~__mmask64{0} >> (64 - n), p);
  }
  // Asks for the bytes that a row needs two chunks later. The rows of a task are too many streams
  // for the hardware to follow. Into the second level: rows often lie a multiple of 1 KB apart and
  // would push each other out of the first.
  static void Prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p + 256), _MM_HINT_T1);
  }
  // The bytes at p, one a lane.
  static Int LoadWidened(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Int LoadInts(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static Int ShiftLeft(Int v, int n) { return _mm512_sllv_epi32(v, _mm512_set1_epi32(n)); }
  static Int ShiftRight(Int v, int n) { return _mm512_srlv_epi32(v, _mm512_set1_epi32(n)); }
  static Int ShiftRightSigned(Int v, int n) { return _mm512_srav_epi32(v, _mm512_set1_epi32(n)); }
  static Int And(Int v, uint32_t mask) {
    return _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(mask)));
  }
  static Float AsFloat(Int v) { return _mm512_castsi512_ps(v); }
  static Float SetFloat(float x) { return _mm512_set1_ps(x); }
  static Float Multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
  // The float with the given bits in the lanes where a equals b, v elsewhere.
  static Float SelectEqual(Int a, uint32_t b, uint32_t bits, Float v) {
    const __mmask16 equal = _mm512_cmpeq_epi32_mask(a, SetInt(b));
    return _mm512_mask_blend_ps(equal, v, _mm512_castsi512_ps(SetInt(bits)));
  }
  // a in the lanes where x < bound as unsigned numbers below 2^31, b elsewhere.
  static Float SelectBelow(Int x, uint32_t bound, Float a, Float b) {
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(x, SetInt(bound)), b, a);
  }
  static Int SetInt(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Int AddInt(Int a, uint32_t b) { return _mm512_add_epi32(a, SetInt(b)); }
  static Float Subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Or(Float a, Int b) {
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), b));
  }
  // Values of the E2M1 codes in bits [shift, shift + 4) of every lane.
  static Float LookupE2m1(Int v, int shift) {
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                        -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(ShiftRight(v, shift), table);
  }
  static void StoreFloat(float* p, Float v) { _mm512_storeu_ps(p, v); }

  // Bit i: lane i is greater than the bound.
  static uint32_t MaskGreater(Vec x, float bound) {
    return _mm512_cmp_ps_mask(x, Set1(bound), _CMP_GT_OQ);
  }

  // ---- products of bytes, and their sums as floats ----
  static Float LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
  static Float AddFloat(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float FmaFloat(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float MaxFloat(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float ToFloat(Int v) { return _mm512_cvtepi32_ps(v); }
  static Int LoadInt(const void* p) { return _mm512_loadu_si512(p); }
  // The four bytes at p in every 32-bit lane.
  static Int BroadcastInt(const uint8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm512_set1_epi32(bits);
  }
  // Per 16-bit lane the sum of two products, unsigned byte of a times signed byte of b.
  static Int MultiplyBytes(Int a, Int b) { return _mm512_maddubs_epi16(a, b); }
  static Int AddShorts(Int a, Int b) { return _mm512_add_epi16(a, b); }
  // Per 32-bit lane the sum of its two signed 16-bit halves.
  static Int AddHalves(Int v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }

  // r[i] lane j <-> r[j] lane i.
  static void Transpose(Int (&r)[kLanes]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // r[4i + c]: columns c, 4 + c, 8 + c, 12 + c (one per 128 bits) of rows 4i..4i+3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
      t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
      t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
      t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
      r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
      r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
      r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
    }
  }
};

}  // namespace
}  // namespace deepinfer
