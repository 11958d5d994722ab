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
  // 12 sums of a block, 12 totals, 4 weights and a value of the 32 registers.
  static constexpr int kTileRows = 3;
  static constexpr int kTileOutputs = 4;
  static constexpr int kPanelOutputs = 16;
  static constexpr int64_t kPanelRows = kMaxTaskRows;
  static constexpr int64_t kMaxStreamRows = 8;
  static constexpr int64_t kStreamChunkBytes = 16384;

  static Acc Zero() { return _mm512_setzero_ps(); }
  static Acc Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static Acc Add(Acc a, Acc b) { return _mm512_add_ps(a, b); }
  static Acc Fma(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }
  static float LaneSum(const float* lane) { return Avx512::LaneSum(Load(lane)); }
  // Quarters of a, then of b, as the pairs of bits of kChoice say.
  template <int kChoice>
  static __m512 Quarters(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(
        _mm512_shuffle_i32x4(_mm512_castps_si512(a), _mm512_castps_si512(b), kChoice));
  }
  // out[i] = LaneSum(lanes + 16 i) of 16 outputs: every step adds the halves of what is left of
  // two sets of sums and packs the results.
  static void SumLanes(const float* lanes, float* out) {
    __m512 of_8[8], of_4[4], of_2[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 a = Load(lanes + 32 * i), b = Load(lanes + 32 * i + 16);
      of_8[i] = Add(Quarters<0x44>(a, b), Quarters<0xEE>(a, b));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 a = of_8[2 * i], b = of_8[2 * i + 1];
      of_4[i] = Add(Quarters<0x88>(a, b), Quarters<0xDD>(a, b));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512d a = _mm512_castps_pd(of_4[2 * i]), b = _mm512_castps_pd(of_4[2 * i + 1]);
      of_2[i] = Add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    // Lane 4 i + j holds output i + 4 j.
    const __m512 sums =
        Add(_mm512_shuffle_ps(of_2[0], of_2[1], 0x88), _mm512_shuffle_ps(of_2[0], of_2[1], 0xDD));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    Store(out, _mm512_permutexvar_ps(order, sums));
  }
  // 64 bytes in a register: the compiler would load them again for every use, and loads are what
  // one row is short of.
  static __m512i LoadOnce(const uint8_t* p) {
    __m512i v = _mm512_loadu_si512(p);
#ifdef __AVX512F__  // not where the instructions are modelled
    asm("" : "+v"(v));
#endif
    return v;
  }
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
  // Of 16 lanes of 8 bytes: bytes q and q + 4 of four lanes, then of the next q, for every four
  // lanes; q from 0 and from 2.
  alignas(64) uint8_t fp8_bytes[2][64] = {};
  // Words q and q + 4 of every 8 for two q.
  alignas(64) uint16_t bf16_words[2][32] = {};

  constexpr PermutationTables() {
    for (uint32_t code = 0; code < 128; ++code) {
      fp8_low[code] = static_cast<uint8_t>(Bf16OfE4m3(code));
      fp8_high[code] = static_cast<uint8_t>(Bf16OfE4m3(code) >> 8);
    }
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 16 * 4 + i % 8 / 2, q = i % 16 / 8, second = i % 2;
      for (int p = 0; p < 2; ++p) {
        fp8_bytes[p][i] = static_cast<uint8_t>(8 * lane + 2 * p + q + 4 * second);
      }
    }
    for (uint16_t i = 0; i < 32; ++i) {
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
  static constexpr int64_t kAheadBytes = 8192;  // by which weights are asked for
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
    const __m512i a = Isa::LoadOnce(block), b = Isa::LoadOnce(block + 64);
    __m512i pairs[4];
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      const __m512i order = _mm512_load_si512(kPermutations.fp8_bytes[p]);
      DecodePairs(_mm512_permutex2var_epi8(a, order, b), pairs + 2 * p);
    }
    Codes codes;
    Isa::FromPairs(pairs, codes.w);
    return codes;
  }
  // Values of the lower and of the upper 8 bytes of every 16.
  static void DecodePairs(__m512i codes, __m512i* pairs) {
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kPermutations.fp8_low), codes,
                                                 _mm512_load_si512(kPermutations.fp8_low + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kPermutations.fp8_high), codes,
                                 _mm512_load_si512(kPermutations.fp8_high + 64));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i high = Isa::AndOr(codes, sign, magnitude);
    pairs[0] = _mm512_unpacklo_epi8(low, high);
    pairs[1] = _mm512_unpackhi_epi8(low, high);
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
  static constexpr int64_t kAheadBytes = 8192;  // by which weights are asked for
  static constexpr int64_t kOutputsPerScale = 1;

  // Word 2j holds codes 8j..8j+3, word 2j+1 codes 8j+4..8j+7. The lookup reads five bits, so every
  // code stands in the table twice.
  using Codes = OperandsAvx512<Isa>;
  static Codes Load(const uint8_t* block, int) {
    const __m512i table = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, -0x8000,
                          -0x4100, -0x4080, -0x4040, -0x4000, -0x3FC0, -0x3F80, -0x3F40));
    const __m512i nibbles = Isa::LoadOnce(block);
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
  static constexpr int64_t kAheadBytes = 2048;  // by which weights are asked for
  static constexpr int64_t kOutputsPerScale = 1;

  struct Scales {
    explicit Scales(uint32_t) {}
    __m512 AddScaled(__m512 sum, int, __m512 acc) const { return _mm512_add_ps(acc, sum); }
    void Fold(int, typename Isa::Reg (&)[Isa::kSteps]) const {}
  };

  // 64 bytes are 8 words of each of four lanes.
  using Codes = OperandsAvx512<Isa>;
  static Codes Load(const uint8_t* block, int) {
    __m512i part[4], pairs[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) part[i] = Isa::LoadOnce(block + 64 * i);
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      // Pairs 2p and 2p + 1 of lanes 0..7, then of lanes 8..15.
      const __m512i words = _mm512_load_si512(kPermutations.bf16_words[p]);
      const __m512i first = _mm512_permutex2var_epi16(part[0], words, part[1]);
      const __m512i second = _mm512_permutex2var_epi16(part[2], words, part[3]);
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
