// 16-lane vectors on AVX2 and FMA, as two registers: the operations the kernel templates are
// written in. Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deepinfer {
namespace {

struct Avx2 {
  // ---- 16 floats ----
  struct Vec {
    __m256 lo;  // lanes 0..7
    __m256 hi;  // lanes 8..15
  };

  static Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void Store(float* p, Vec v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  static Vec LoadPartial(const float* p, int n) {
    return {_mm256_maskload_ps(p, Mask(n)),
            n > 8 ? _mm256_maskload_ps(p + 8, Mask(n - 8)) : _mm256_setzero_ps()};
  }
  static void StorePartial(float* p, Vec v, int n) {
    _mm256_maskstore_ps(p, Mask(n), v.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, Mask(n - 8), v.hi);
  }
  // The four bytes at p in every lane.
  static Vec Broadcast(const std::byte* p) {
    const __m256 x = _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
    return {x, x};
  }
  static Vec Fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static Vec Add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static Vec Sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static Vec Mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static Vec Div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  // Lanes 2i and 2i+1 exchanged.
  static Vec SwapPairs(Vec v) {
    return {_mm256_permute_ps(v.lo, 0xB1), _mm256_permute_ps(v.hi, 0xB1)};
  }
  // Lane tree of Lane16: distance 8, 4, 2, 1.
  static float LaneSum(Vec v) {
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  // The largest lane.
  static float LaneMax(Vec v) {
    const __m256 a = _mm256_max_ps(v.lo, v.hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }
  // a·b + c in the first n lanes, c in the others.
  static Vec FmaPartial(Vec a, Vec b, Vec c, int n) {
    const Vec sum = Fma(a, b, c);
    return {_mm256_blendv_ps(c.lo, sum.lo, _mm256_castsi256_ps(Mask(n))),
            _mm256_blendv_ps(c.hi, sum.hi, _mm256_castsi256_ps(Mask(n - 8)))};
  }
  // x < bound ? a : b, b for a NaN; and x > bound.
  static Vec SelectLess(Vec x, float bound, Vec a, Vec b) {
    const __m256 limit = _mm256_set1_ps(bound);
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit, _CMP_LT_OQ))};
  }
  static Vec SelectGreater(Vec x, float bound, Vec a, Vec b) {
    const __m256 limit = _mm256_set1_ps(bound);
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit, _CMP_GT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit, _CMP_GT_OQ))};
  }
  // p · 2^n for integral n, in two exact powers (det_math.h ScaleF).
  static Vec ScalePow2(Vec p, Vec n) { return {ScaleHalf(p.lo, n.lo), ScaleHalf(p.hi, n.hi)}; }
  static __m256 ScaleHalf(__m256 p, __m256 n) {
    const __m256i i = _mm256_cvttps_epi32(n);
    const __m256i i1 = _mm256_srai_epi32(i, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, Pow2(i1)), Pow2(_mm256_sub_epi32(i, i1)));
  }
  static __m256 Pow2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  // Nearest bf16 values, ties to even; a NaN keeps its upper bits and is quiet.
  static Vec RoundBf16(Vec v) { return {RoundHalfBf16(v.lo), RoundHalfBf16(v.hi)}; }
  static __m256 RoundHalfBf16(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), tie);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256 rounded =
        _mm256_blendv_ps(_mm256_castsi256_ps(sum), _mm256_castsi256_ps(quiet), is_nan);
    return _mm256_and_ps(rounded, _mm256_castsi256_ps(SetInt(0xFFFF0000u)));
  }
  static Vec LoadBf16(const uint16_t* p) { return {Bf16Half(p), Bf16Half(p + 8)}; }
  static __m256 Bf16Half(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  // 16 E2M1 codes in 8 bytes, low nibble first.
  static Vec LoadE2m1(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i codes = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    return {LookupE2m1(_mm256_cvtepu8_epi32(codes), 0),
            LookupE2m1(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(codes, codes)), 0)};
  }
  // The first n lanes of 8; all of them for n > 8.
  static __m256i Mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  // ---- one register of 32-bit lanes, the unit in which weights are unpacked ----
  static constexpr int kLanes = 8;
  using Int = __m256i;
  using Float = __m256;

  // The first n <= 32 bytes at p, zeros behind them.
  static Int LoadBytes(const uint8_t* p, int64_t n) {
    if (n >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    alignas(32) uint8_t bytes[32] = {};
    std::memcpy(bytes, p, static_cast<size_t>(n));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  // As in isa_avx512.h.
  static void Prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p + 256), _MM_HINT_T1);
  }
  // The bytes at p, one a lane.
  static Int LoadWidened(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static Int LoadInts(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Int ShiftLeft(Int v, int n) { return _mm256_sllv_epi32(v, _mm256_set1_epi32(n)); }
  static Int ShiftRight(Int v, int n) { return _mm256_srlv_epi32(v, _mm256_set1_epi32(n)); }
  static Int ShiftRightSigned(Int v, int n) { return _mm256_srav_epi32(v, _mm256_set1_epi32(n)); }
  static Int And(Int v, uint32_t mask) {
    return _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(mask)));
  }
  static Float AsFloat(Int v) { return _mm256_castsi256_ps(v); }
  static Float SetFloat(float x) { return _mm256_set1_ps(x); }
  static Float Multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
  // The float with the given bits in the lanes where a equals b, v elsewhere.
  static Float SelectEqual(Int a, uint32_t b, uint32_t bits, Float v) {
    const __m256i equal = _mm256_cmpeq_epi32(a, SetInt(b));
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(SetInt(bits)), _mm256_castsi256_ps(equal));
  }
  // a in the lanes where x < bound as unsigned numbers below 2^31, b elsewhere.
  static Float SelectBelow(Int x, uint32_t bound, Float a, Float b) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(SetInt(bound), x)));
  }
  static Int SetInt(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Int AddInt(Int a, uint32_t b) { return _mm256_add_epi32(a, SetInt(b)); }
  static Float Subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Or(Float a, Int b) { return _mm256_or_ps(a, _mm256_castsi256_ps(b)); }
  // Values of the E2M1 codes in bits [shift, shift + 4) of every lane.
  static Float LookupE2m1(Int v, int shift) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = And(ShiftLeft(v, 28 - shift), 0x80000000u);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, ShiftRight(v, shift)),
                        _mm256_castsi256_ps(sign));
  }
  static void StoreFloat(float* p, Float v) { _mm256_storeu_ps(p, v); }

  // Bit i: lane i is greater than the bound.
  static uint32_t MaskGreater(Vec x, float bound) {
    const __m256 limit = _mm256_set1_ps(bound);
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(x.lo, limit, _CMP_GT_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(x.hi, limit, _CMP_GT_OQ));
    return static_cast<uint32_t>(lo | hi << 8);
  }

  // ---- products of bytes, and their sums as floats ----
  static Float LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
  static Float AddFloat(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float FmaFloat(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float MaxFloat(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float ToFloat(Int v) { return _mm256_cvtepi32_ps(v); }
  static Int LoadInt(const void* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  // The four bytes at p in every 32-bit lane.
  static Int BroadcastInt(const uint8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi32(bits);
  }
  // Per 16-bit lane the sum of two products, unsigned byte of a times signed byte of b.
  static Int MultiplyBytes(Int a, Int b) { return _mm256_maddubs_epi16(a, b); }
  static Int AddShorts(Int a, Int b) { return _mm256_add_epi16(a, b); }
  // Per 32-bit lane the sum of its two signed 16-bit halves.
  static Int AddHalves(Int v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

  // r[i] lane j <-> r[j] lane i.
  static void Transpose(Int (&r)[kLanes]) {
    __m256i t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    __m256i u[8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm256_permute2x128_si256(u[c], u[4 + c], 0x20);
      r[4 + c] = _mm256_permute2x128_si256(u[c], u[4 + c], 0x31);
    }
  }
};

}  // namespace
}  // namespace deepinfer
