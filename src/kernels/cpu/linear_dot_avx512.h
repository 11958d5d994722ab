// Stored forms of the bf16dot family on AVX-512 with VBMI: byte permutations decode a block to
// pairs of bf16 words, lane j of pair q holding k = 8j + q and 8j + 4 + q (linear_dot.h).
// Isa::FromPairs makes them operands: linear_avx512bf16.cc uses them as they are, linear_avx512.cc
// takes them apart. Internal linkage on purpose (kernel_table.h). Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/linear_dot.h"

namespace deepinfer {
namespace {

// What the levels share.
struct DotAvx512 {
  using Acc = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kHalves = 1;
  static constexpr int kRegBytes = 64;
  // 24 sums, 4 weights and a value of the 32 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileOutputs = 4;
  static constexpr int kPanelOutputs = 16;
  static constexpr int64_t kMaxStreamRows = 8;
  static constexpr int64_t kPrefetchBytes = 2048;

  static Acc Zero() { return _mm512_setzero_ps(); }
  static Acc Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static Acc Add(Acc a, Acc b) { return _mm512_add_ps(a, b); }
  static Acc Fma(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }
  static float LaneSum(const float* lane) { return Avx512::LaneSum(Load(lane)); }
  // (a & b) | c.
  static __m512i AndOr(__m512i a, __m512i b, __m512i c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0xEA);
  }
};

// The four scales of a block, for lanes j in group j / 4.
template <class Isa>
struct ScalesAvx512 {
  explicit ScalesAvx512(uint32_t four) {
    // Byte g to the top of the lanes of group g.
    constexpr int k0 = 0x00808080, k1 = 0x01808080, k2 = 0x02808080, k3 = 0x03808080;
    const __m512i order =
        _mm512_setr_epi32(k0, k0, k0, k0, k1, k1, k1, k1, k2, k2, k2, k2, k3, k3, k3, k3);
    const __m512i top = _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(four)), order);
    value = _mm512_castsi512_ps(_mm512_srli_epi32(top, 1));
  }
  __m512 AddScaled(__m512 sum, int, __m512 acc) const { return _mm512_fmadd_ps(sum, value, acc); }
  void Fold(int, typename Isa::Reg (&w)[Isa::kSteps]) const { Isa::Scale(value, w); }

  __m512 value;
};

template <class Isa>
struct OperandsAvx512 {
  typename Isa::Reg w[Isa::kSteps];
};

struct NoWatch {
  void See(const uint8_t*, int) {}
  bool SawNan() const { return false; }
};

// bf16 bits of an E4M3 code without its sign.
constexpr uint32_t Bf16OfE4m3(uint32_t magnitude) {
  if (magnitude == 0x7F) return 0x7FC0;
  if (magnitude >= 8) return (120 << 7) + (magnitude << 4);
  if (magnitude == 0) return 0;
  const uint32_t log2 = magnitude >= 4 ? 2 : (magnitude >= 2 ? 1 : 0);
  return ((118 + log2) << 7) + (((magnitude << (7 - log2)) & 0x7F));
}

struct PermutationTables {
  // Low and high bytes of Bf16OfE4m3.
  alignas(64) uint8_t fp8_low[128] = {};
  alignas(64) uint8_t fp8_high[128] = {};
  // Words 0 and 2 of every 4 of 64, and words q and q + 4 of every 8 for two q.
  alignas(64) uint16_t fp8_words[32] = {};
  alignas(64) uint16_t bf16_words[2][32] = {};

  constexpr PermutationTables() {
    for (uint32_t code = 0; code < 128; ++code) {
      fp8_low[code] = static_cast<uint8_t>(Bf16OfE4m3(code));
      fp8_high[code] = static_cast<uint8_t>(Bf16OfE4m3(code) >> 8);
    }
    for (uint16_t i = 0; i < 32; ++i) {
      fp8_words[i] = static_cast<uint16_t>(2 * i);
      const int lane = i / 2 % 8, q = i / 16, second = i % 2;
      for (int p = 0; p < 2; ++p) {
        bf16_words[p][i] = static_cast<uint16_t>(8 * lane + 2 * p + q + 4 * second);
      }
    }
  }
};
inline constexpr PermutationTables kPermutations;

template <class IsaT>
struct Fp8Avx512 {
  using Isa = IsaT;
  using Scales = ScalesAvx512<Isa>;
  using StreamScope = FlushDenormalsScope;
  using StreamWatch = NoWatch;
  static constexpr bool kIsScaled = true;
  static constexpr int64_t kBlockBytes = 128;
  static constexpr int64_t kOutputsPerScale = 32;

  // A folded scale would hide a NaN.
  struct PanelWatch {
    void See(const uint8_t* block, int) {
      const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
      for (int i = 0; i < 2; ++i) {
        const __m512i codes = _mm512_or_si512(_mm512_loadu_si512(block + 64 * i), sign);
        mask |= _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(-1));
      }
    }
    bool SawNan() const { return mask != 0; }
    uint64_t mask = 0;
  };

  using Codes = OperandsAvx512<Isa>;
  static Codes Load(const uint8_t* block, int) {
    const __m512i a = _mm512_loadu_si512(block);
    const __m512i b = _mm512_loadu_si512(block + 64);
    // Codes 0, 1, 4, 5 and codes 2, 3, 6, 7 of every lane.
    const __m512i words = _mm512_load_si512(kPermutations.fp8_words);
    const __m512i next = _mm512_add_epi16(words, _mm512_set1_epi16(1));
    __m512i pairs[4];
    DecodePairs(_mm512_permutex2var_epi16(a, words, b), pairs);
    DecodePairs(_mm512_permutex2var_epi16(a, next, b), pairs + 2);
    Codes codes;
    Isa::FromPairs(pairs, codes.w);
    return codes;
  }
  // Values of the even and of the odd bytes.
  static void DecodePairs(__m512i codes, __m512i* pairs) {
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kPermutations.fp8_low), codes,
                                                 _mm512_load_si512(kPermutations.fp8_low + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kPermutations.fp8_high), codes,
                                 _mm512_load_si512(kPermutations.fp8_high + 64));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i high = Isa::AndOr(codes, sign, magnitude);
    const __m512i low_bytes = _mm512_set1_epi16(0x00FF);
    pairs[0] = Isa::AndOr(low, low_bytes, _mm512_slli_epi16(high, 8));
    // Bits from `high` where the mask is clear.
    pairs[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, low_bytes, 0xE4);
  }
  static typename Isa::Reg Operand(const Codes& codes, int s) { return codes.w[s]; }
  static typename Isa::Reg Exact(typename Isa::Reg v) { return v; }
};

template <class IsaT>
struct Fp4Avx512 {
  using Isa = IsaT;
  using Scales = ScalesAvx512<Isa>;
  using StreamScope = FlushDenormalsScope;
  using StreamWatch = NoWatch;
  using PanelWatch = NoWatch;
  static constexpr bool kIsScaled = true;
  static constexpr int64_t kBlockBytes = 64;
  static constexpr int64_t kOutputsPerScale = 1;

  // Word 2j holds codes 8j..8j+3, word 2j+1 codes 8j+4..8j+7. The lookup reads five bits, so every
  // code stands in the table twice.
  using Codes = OperandsAvx512<Isa>;
  static Codes Load(const uint8_t* block, int) {
    const __m512i table = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, -0x8000,
                          -0x4100, -0x4080, -0x4040, -0x4000, -0x3FC0, -0x3F80, -0x3F40));
    const __m512i nibbles = _mm512_loadu_si512(block);
    const __m512i pairs[4] = {_mm512_permutexvar_epi16(nibbles, table),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 4), table),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 8), table),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 12), table)};
    Codes codes;
    Isa::FromPairs(pairs, codes.w);
    return codes;
  }
  static typename Isa::Reg Operand(const Codes& codes, int s) { return codes.w[s]; }
  static typename Isa::Reg Exact(typename Isa::Reg v) { return v; }
};

template <class IsaT>
struct Bf16Avx512 {
  using Isa = IsaT;
  using StreamScope = FlushDenormalsScope;
  using StreamWatch = NoWatch;
  using PanelWatch = NoWatch;
  static constexpr bool kIsScaled = false;
  static constexpr int64_t kBlockBytes = 256;
  static constexpr int64_t kOutputsPerScale = 1;

  struct Scales {
    explicit Scales(uint32_t) {}
    __m512 AddScaled(__m512 sum, int, __m512 acc) const { return _mm512_add_ps(acc, sum); }
    void Fold(int, typename Isa::Reg (&)[Isa::kSteps]) const {}
  };

  // 64 bytes are 8 words of each of four lanes.
  using Codes = OperandsAvx512<Isa>;
  static Codes Load(const uint8_t* block, int) {
    __m512i pairs[4];
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      // Pairs 2p and 2p + 1 of lanes 0..7, then of lanes 8..15.
      const __m512i words = _mm512_load_si512(kPermutations.bf16_words[p]);
      const __m512i first = _mm512_permutex2var_epi16(_mm512_loadu_si512(block), words,
                                                      _mm512_loadu_si512(block + 64));
      const __m512i second = _mm512_permutex2var_epi16(_mm512_loadu_si512(block + 128), words,
                                                       _mm512_loadu_si512(block + 192));
      pairs[2 * p] = _mm512_shuffle_i32x4(first, second, 0x44);
      pairs[2 * p + 1] = _mm512_shuffle_i32x4(first, second, 0xEE);
    }
    Codes codes;
    Isa::FromPairs(pairs, codes.w);
    return codes;
  }
  static typename Isa::Reg Operand(const Codes& codes, int s) { return codes.w[s]; }
  static typename Isa::Reg Exact(typename Isa::Reg v) { return v; }
};

}  // namespace
}  // namespace deepinfer
