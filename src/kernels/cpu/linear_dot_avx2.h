// The bf16dot family on AVX2: fp32 operands, two fused multiply-adds for a pair (linear_dot.h).
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/linear_dot.h"

namespace deepinfer {
namespace {

struct DotAvx2 {
  using Reg = __m256;
  using Acc = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kHalves = 2;
  static constexpr int kSteps = 8;  // for q = 0..3: k = 8j + 4 + q, then k = 8j + q
  static constexpr int kRegBytes = 32;
  static constexpr int64_t kBlockBytes = kHalves * kSteps * kRegBytes;
  // 12 sums, 3 weights and a value are the 16 registers.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs = 3;
  // 12 KB of weights, 4 KB of values and 3 KB of sums: the first-level cache has 32.
  static constexpr int kPanelOutputs = 12;
  static constexpr int64_t kChunkBlocks = 2;
  static constexpr int64_t kPanelRows = 64;
  static constexpr int64_t kMaxStreamRows = 8;
  static constexpr int64_t kStreamChunkBytes = 16384;

  static Acc Zero() { return _mm256_setzero_ps(); }
  static Acc Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Acc v) { _mm256_storeu_ps(p, v); }
  static Acc Add(Acc a, Acc b) { return _mm256_add_ps(a, b); }
  static Acc Fma(Acc a, Acc b, Acc c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg LoadReg(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static void StoreReg(std::byte* p, Reg v) { _mm256_storeu_ps(reinterpret_cast<float*>(p), v); }
  static Acc Step(Acc sum, Reg w, Reg x) { return _mm256_fmadd_ps(w, x, sum); }
  static float LaneSum(const float* lane) { return Avx2::LaneSum(Avx2::Load(lane)); }
  // out[i] = LaneSum(lanes + 16 i) of 16 outputs.
  static void SumLanes(const float* lanes, float* out) {
    for (int i = 0; i < kSumOutputs; ++i) out[i] = LaneSum(lanes + 16 * i);
  }

  // Rows for FP8 and FP4 weights carry 2^60, which keeps their products with FP8 weights, decoded
  // without 2^120, among the normal numbers. v: an activation code times its folded scale.
  static Reg RowValue(Reg v, bool for_codes) {
    return _mm256_mul_ps(v, _mm256_set1_ps(for_codes ? 0x1p120f : 0x1p60f));
  }
  static Reg PlainRowValue(Reg v) { return _mm256_mul_ps(v, _mm256_set1_ps(0x1p-60f)); }

  // Two words of eight lanes each.
  struct Pairs {
    __m256i pair[4];
  };
  static __m256 LowWord(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  static __m256 HighWord(__m256i v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, Avx2::SetInt(0xFFFF0000u)));
  }
  // Offset of the k of a step in the 8 of a lane.
  static constexpr int StepOffset(int s) { return s / 2 + (s % 2 == 0 ? 4 : 0); }
  // 16 bytes at p and 16 bytes at q.
  static __m256i LoadTwo(const uint8_t* p, const uint8_t* q) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
};

// The four scales of a block times 2^kExponent, for lanes j in group j / 4.
template <int kExponent>
struct ScalesAvx2 {
  explicit ScalesAvx2(uint32_t four)
      : bytes(_mm256_add_epi8(_mm256_set1_epi32(static_cast<int>(four)),
                              _mm256_set1_epi8(static_cast<char>(kExponent)))) {}

  __m256 Of(int half) const { return OfBytes(bytes, half); }
  // The powers of two with the exponents of the half's two groups.
  static __m256 OfBytes(__m256i bytes, int half) {
    // Byte 2·half or 2·half + 1 to the top of every lane.
    const __m256i low =
        _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 1,
                         -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1);
    const __m256i high =
        _mm256_setr_epi8(-1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 3,
                         -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 3);
    const __m256i top = _mm256_shuffle_epi8(bytes, half == 0 ? low : high);
    return _mm256_castsi256_ps(_mm256_srli_epi32(top, 1));
  }
  __m256 AddScaled(__m256 sum, int half, __m256 acc) const {
    return _mm256_fmadd_ps(sum, Of(half), acc);
  }
  void Fold(int half, __m256 (&w)[DotAvx2::kSteps]) const {
    const __m256 scale = Of(half);
#pragma GCC unroll 8
    for (__m256& v : w) v = _mm256_mul_ps(v, scale);
  }

  __m256i bytes;
};

// Forms in which no NaN is missed.
struct NoWatch {
  void See(const uint8_t*, int) {}
  bool SawNan() const { return false; }
};

struct Fp8Avx2 {
  using Isa = DotAvx2;
  using Scales = ScalesAvx2<60>;
  // Decoded subnormal codes are denormals, and nothing else is.
  using StreamScope = NoScope;
  static constexpr bool kIsScaled = true;
  static constexpr int64_t kBlockBytes = 128;
  static constexpr int64_t kAheadBytes = 2048;  // by which weights are asked for
  static constexpr int64_t kOutputsPerScale = 32;

  struct StreamWatch {
    void See(const uint8_t* block, int half) {
      const uint8_t* p = block + 64 * half;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * i));
        largest = _mm256_max_epi8(largest, v);
        largest_unsigned = _mm256_max_epu8(largest_unsigned, v);
      }
    }
    bool SawNan() const {
      const __m256i positive = _mm256_cmpeq_epi8(largest, _mm256_set1_epi8(0x7F));
      const __m256i negative = _mm256_cmpeq_epi8(largest_unsigned, _mm256_set1_epi8(-1));
      return _mm256_movemask_epi8(_mm256_or_si256(positive, negative)) != 0;
    }
    __m256i largest = _mm256_setzero_si256();
    __m256i largest_unsigned = _mm256_setzero_si256();
  };
  using PanelWatch = StreamWatch;

  // Operands times 2^-120: sign, exponent and mantissa of a code moved to their places in fp32,
  // whose bias is 120 larger. Subnormal codes become denormals.
  using Codes = Isa::Pairs;  // codes 0 and 2, 1 and 3, 4 and 6, 5 and 7 with four signs each
  static Codes Load(const uint8_t* block, int half) {
    const uint8_t* p = block + 64 * half;
    const __m256 a = _mm256_castsi256_ps(Isa::LoadTwo(p, p + 32));
    const __m256 b = _mm256_castsi256_ps(Isa::LoadTwo(p + 16, p + 48));
    const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
    return {{_mm256_srai_epi16(_mm256_slli_epi16(low, 8), 4), _mm256_srai_epi16(low, 4),
             _mm256_srai_epi16(_mm256_slli_epi16(high, 8), 4), _mm256_srai_epi16(high, 4)}};
  }
  static __m256 Operand(const Codes& codes, int s) {
    const int k = Isa::StepOffset(s);
    const __m256i pair = codes.pair[k / 4 * 2 + k % 2];
    const __m256i top = k % 4 < 2 ? _mm256_slli_epi32(pair, 16) : pair;
    return _mm256_castsi256_ps(_mm256_and_si256(top, Avx2::SetInt(0x87F00000u)));
  }
  static __m256 Exact(__m256 v) {
    const __m256i magnitude = Avx2::And(_mm256_castps_si256(v), 0x7FFFFFFFu);
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, Avx2::SetInt(0x07F00000u));
    return _mm256_or_ps(_mm256_mul_ps(v, _mm256_set1_ps(0x1p120f)), _mm256_castsi256_ps(is_nan));
  }
};

struct Fp4Avx2 {
  using Isa = DotAvx2;
  using Scales = ScalesAvx2<-60>;
  using StreamScope = FlushDenormalsScope;
  using StreamWatch = NoWatch;
  using PanelWatch = NoWatch;
  static constexpr bool kIsScaled = true;
  static constexpr int64_t kBlockBytes = 64;
  static constexpr int64_t kAheadBytes = 2048;  // by which weights are asked for
  static constexpr int64_t kOutputsPerScale = 1;

  // 32 bytes are 8 codes of each of 8 lanes. Both bytes of the bf16 value of a code are looked up.
  using Codes = Isa::Pairs;  // values of codes 0 and 2, 1 and 3, 4 and 6, 5 and 7
  static Codes Load(const uint8_t* block, int half) {
    const __m256i low_bytes =
        Twice(_mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_bytes = Twice(_mm_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                                   -128, -65, -65, -65, -64, -64, -64, -64));
    // Bytes 0, 1 of the four lanes, then bytes 2, 3: unpacking then keeps lanes in place.
    const __m256i order =
        Twice(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i codes = _mm256_shuffle_epi8(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32 * half)), order);
    const __m256i nibble = _mm256_set1_epi8(15);
    Codes values;
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i index =
          _mm256_and_si256(odd == 0 ? codes : _mm256_srli_epi16(codes, 4), nibble);
      const __m256i low = _mm256_shuffle_epi8(low_bytes, index);
      const __m256i high = _mm256_shuffle_epi8(high_bytes, index);
      values.pair[odd] = _mm256_unpacklo_epi8(low, high);
      values.pair[2 + odd] = _mm256_unpackhi_epi8(low, high);
    }
    return values;
  }
  static __m256 Operand(const Codes& values, int s) {
    const int k = Isa::StepOffset(s);
    const __m256i pair = values.pair[k / 4 * 2 + k % 2];
    return k % 4 < 2 ? Isa::LowWord(pair) : Isa::HighWord(pair);
  }
  static __m256 Exact(__m256 v) { return v; }
  static __m256i Twice(__m128i v) { return _mm256_broadcastsi128_si256(v); }
};

struct Bf16Avx2 {
  using Isa = DotAvx2;
  using StreamScope = FlushDenormalsScope;
  using StreamWatch = NoWatch;
  using PanelWatch = NoWatch;
  static constexpr bool kIsScaled = false;
  static constexpr int64_t kBlockBytes = 256;
  static constexpr int64_t kAheadBytes = 2048;  // by which weights are asked for
  static constexpr int64_t kOutputsPerScale = 1;

  struct Scales {
    explicit Scales(uint32_t) {}
    __m256 AddScaled(__m256 sum, int, __m256 acc) const { return _mm256_add_ps(acc, sum); }
    void Fold(int, __m256 (&)[8]) const {}
  };

  // 16 bytes are 8 words of one lane: four lanes are transposed as pairs of words.
  using Codes = Isa::Pairs;  // words 0 and 1, 2 and 3, 4 and 5, 6 and 7
  static Codes Load(const uint8_t* block, int half) {
    const uint8_t* p = block + 128 * half;
    const __m256i a = Isa::LoadTwo(p, p + 64);
    const __m256i b = Isa::LoadTwo(p + 16, p + 80);
    const __m256i c = Isa::LoadTwo(p + 32, p + 96);
    const __m256i d = Isa::LoadTwo(p + 48, p + 112);
    const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    return {{_mm256_unpacklo_epi64(ab_low, cd_low), _mm256_unpackhi_epi64(ab_low, cd_low),
             _mm256_unpacklo_epi64(ab_high, cd_high), _mm256_unpackhi_epi64(ab_high, cd_high)}};
  }
  static __m256 Operand(const Codes& words, int s) {
    const int k = Isa::StepOffset(s);
    return k % 2 == 0 ? Isa::LowWord(words.pair[k / 2]) : Isa::HighWord(words.pair[k / 2]);
  }
  static __m256 Exact(__m256 v) { return v; }
};

}  // namespace
}  // namespace deepinfer
