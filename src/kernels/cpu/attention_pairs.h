// Rows of attention in the order of the bf16dot family (docs/numerics.md §7, Lane16 pairs), for
// every instruction set: lane j of 16 owns channels 8j..8j+7 of every 128, step q multiplies the
// pair (8j+q, 8j+4+q). Internal linkage on purpose (kernel_table.h).
//
// A Form is how an instruction set holds such a row:
//   Unit, kBlockUnits   elements of 4 bytes, and their number for 128 channels
//   kRegs, Reg          registers that lane sums take from a block, in order
//   StorePair           second and first element of the pairs of eight lanes of a step
//   MultiplyAdd, Keep   sum + products of one register of either operand, which Keep holds there
//   AddPair             sums of kGroupSums registers of channels + two weighted keys
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention_keys.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/kernel_table.h"

namespace deepinfer {
namespace {

inline constexpr int64_t kPairBlock = 128;
// Half a block: the channels of eight lanes.
inline constexpr int64_t kPairHalf = 64;

inline int64_t PairBlocks(int64_t n) { return (n + kPairBlock - 1) / kPairBlock; }

// The form without vdpbf16ps: fp32, the sixteen second elements of a step before the first ones.
template <class IsaType>
struct Fp32Pairs {
  using Isa = IsaType;
  using Unit = float;
  using Float = typename Isa::Float;
  using Reg = typename Isa::Float;
  static constexpr int64_t kBlockUnits = kPairBlock;
  static constexpr int64_t kStepUnits = 32;
  static constexpr int kRegs = 8;
  static constexpr int kHeads = 4;  // a block of heads and keys that fits the registers
  static constexpr int kKeys = Isa::kLanes == 16 ? 4 : 2;
  static constexpr int kValueHeads = Isa::kLanes == 16 ? 8 : 4;
  static constexpr int64_t kGroupUnits = 2 * Isa::kLanes;
  static constexpr int64_t kGroupSums[2] = {0, Isa::kLanes};  // where they lie

  static void StorePair(Unit* step, int half, __m256 second, __m256 first) {
    _mm256_storeu_ps(step + 8 * half, second);
    _mm256_storeu_ps(step + 16 + 8 * half, first);
  }
  static Reg Load(const Unit* p) { return Isa::LoadFloats(p); }
  static Float MultiplyAdd(Float sum, Reg a, Reg b) { return Isa::FmaFloat(a, b, sum); }
  // Keeps an operand in its register: with few of them the compiler would load it for every use.
  static void Keep([[maybe_unused]] Reg* operand) {
    if constexpr (Isa::kLanes == 8) asm("" : "+x"(*operand));
  }

  // Weights of n keys; the key that completes the last pair gets the weight 0.
  static void PackWeights(float* weights, int n) {
    if (n % 2 != 0) weights[n] = 0.0f;
  }
  template <int kCount>
  static void AddPair(const Unit* key0, const Unit* key1, const float* weights, int i,
                      Float (&sum)[kCount][2]) {
    AddKey(key1, weights + i + 1, sum);
    AddKey(key0, weights + i, sum);
  }

 private:
  template <int kCount>
  static void AddKey(const Unit* key, const float* weights, Float (&sum)[kCount][2]) {
    const Reg low = Load(key), high = Load(key + Isa::kLanes);
#pragma GCC unroll 8
    for (int h = 0; h < kCount; ++h) {
      const Float weight = Isa::SetFloat(weights[h * kTileKeys]);
      sum[h][0] = Isa::FmaFloat(weight, low, sum[h][0]);
      sum[h][1] = Isa::FmaFloat(weight, high, sum[h][1]);
    }
  }
};

// Eight lanes of a block: r[i] holds element i of every lane.
template <class Form>
void StoreHalf(const __m256 (&r)[8], int half, typename Form::Unit* block) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    Form::StorePair(block + q * Form::kStepUnits, half, r[4 + q], r[q]);
  }
}

inline void TransposeFloats(__m256 (&r)[8]) {
  __m256i v[8];
  for (int i = 0; i < 8; ++i) v[i] = _mm256_castps_si256(r[i]);
  Avx2::Transpose(v);
  for (int i = 0; i < 8; ++i) r[i] = _mm256_castsi256_ps(v[i]);
}

// out = x f32 [n] with zeros up to the end of its last block.
template <class Form>
void FormRow(const float* x, int64_t n, typename Form::Unit* out) {
  for (int64_t i = 0; i < PairBlocks(n) * kPairBlock; i += kPairHalf) {
    alignas(32) float padded[kPairHalf];
    const float* half = x + i;
    if (i + kPairHalf > n) {
      const int64_t left = n > i ? n - i : 0;
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, half, static_cast<size_t>(left) * sizeof(float));
      half = padded;
    }
    __m256 r[8];
    for (int j = 0; j < 8; ++j) r[j] = _mm256_loadu_ps(half + 8 * j);
    TransposeFloats(r);
    StoreHalf<Form>(r, static_cast<int>(i / kPairHalf % 2),
                    out + i / kPairBlock * Form::kBlockUnits);
  }
}

// out f32 [n] = sums, in the order of Fp32Pairs, over the denominator.
inline void UnformRow(const float* sums, int64_t n, float denominator, float* out) {
  const __m256 divisor = _mm256_set1_ps(denominator);
  for (int64_t i = 0; i < n; i += kPairHalf) {
    const float* half = sums + i / kPairBlock * kPairBlock + i / kPairHalf % 2 * 8;
    __m256 r[8];
    for (int q = 0; q < 4; ++q) {
      r[4 + q] = _mm256_div_ps(_mm256_loadu_ps(half + 32 * q), divisor);
      r[q] = _mm256_div_ps(_mm256_loadu_ps(half + 32 * q + 16), divisor);
    }
    TransposeFloats(r);
    alignas(32) float row[kPairHalf];
    for (int j = 0; j < 8; ++j) _mm256_store_ps(row + 8 * j, r[j]);
    const int64_t left = n - i < kPairHalf ? n - i : kPairHalf;
    std::memcpy(out + i, row, static_cast<size_t>(left) * sizeof(float));
  }
}

// Whether a code of n is the NaN of E4M3, n a multiple of 32.
inline bool HasE4m3Nan(const uint8_t* codes, int64_t n) {
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  __m256i any = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; i += 32) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    any = _mm256_or_si256(any, _mm256_cmpeq_epi8(_mm256_and_si256(v, magnitude), magnitude));
  }
  return _mm256_testz_si256(any, any) == 0;
}

// Eight lanes of E4M3 codes without NaN: 64 bytes and two scales. The magnitude bits of a code are
// those of an fp32 number 2^-120 times as large.
inline void DecodeWindowHalf(const uint8_t* codes, float scale0, float scale1, __m256 (&r)[8]) {
  const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(codes));
  const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(codes + 32));
  const auto in_order = [](__m256 v) {
    return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xD8);
  };
  const __m256i words[2] = {in_order(_mm256_shuffle_ps(a, b, 0x88)),
                            in_order(_mm256_shuffle_ps(a, b, 0xDD))};
  const __m256 scale = _mm256_set_m128(_mm_set1_ps(scale1), _mm_set1_ps(scale0));
  const __m256 rebias = _mm256_set1_ps(0x1p120f);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i top = _mm256_slli_epi32(words[i / 4], 24 - 8 * (i % 4));
    const __m256i bits = Avx2::And(_mm256_srai_epi32(top, 4), 0x87F00000u);
    r[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_castsi256_ps(bits), rebias), scale);
  }
}

// Eight lanes of E2M1 codes: 32 bytes and four E4M3 scales.
inline void DecodeCompressedHalf(const uint8_t* codes, const uint8_t* scales, __m256 (&r)[8]) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m128 four = _mm_setr_ps(kE4m3Table[scales[0]], kE4m3Table[scales[1]],
                                  kE4m3Table[scales[2]], kE4m3Table[scales[3]]);
  const __m256 scale = _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four));
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_mul_ps(Avx2::LookupE2m1(words, 4 * i), scale);
}

template <class Form>
void ClearUnits(typename Form::Unit* p, int64_t n) {
  std::memset(p, 0, static_cast<size_t>(n) * sizeof *p);
}

// A window row of n channels; plain is room for n floats.
template <class Form>
void FormWindowKey(const std::byte* row, int64_t n, float* plain, typename Form::Unit* out) {
  const uint8_t* codes = Bytes(row);
  if (n % kPairHalf != 0 || HasE4m3Nan(codes, n)) {
    LoadWindowKey<Avx2>(KvFormat::kQuantized, row, n, plain);
    return FormRow<Form>(plain, n, out);
  }
  if (n % kPairBlock != 0) {
    ClearUnits<Form>(out + n / kPairBlock * Form::kBlockUnits, Form::kBlockUnits);
  }
  for (int64_t i = 0; i < n; i += kPairHalf) {
    const uint8_t* scales = codes + n + i / 32;
    __m256 r[8];
    DecodeWindowHalf(codes + i, ScaleValue(scales[0]), ScaleValue(scales[1]), r);
    StoreHalf<Form>(r, static_cast<int>(i / kPairHalf % 2),
                    out + i / kPairBlock * Form::kBlockUnits);
  }
}

// A compressed entry likewise.
template <class Form>
void FormCompressedKey(const std::byte* row, int64_t n, float* plain, typename Form::Unit* out) {
  const uint8_t* codes = Bytes(row);
  if (n % kPairHalf != 0) {
    LoadCompressedKey<Avx2>(KvFormat::kQuantized, row, n, plain);
    return FormRow<Form>(plain, n, out);
  }
  if (n % kPairBlock != 0) {
    ClearUnits<Form>(out + n / kPairBlock * Form::kBlockUnits, Form::kBlockUnits);
  }
  for (int64_t i = 0; i < n; i += kPairHalf) {
    __m256 r[8];
    DecodeCompressedHalf(codes + i / 2, codes + n / 2 + i / 16, r);
    StoreHalf<Form>(r, static_cast<int>(i / kPairHalf % 2),
                    out + i / kPairBlock * Form::kBlockUnits);
  }
}

// Sums of 16 lanes at distance 8, 4, 2, 1, eight at a time.
inline __m256 SumLanesOfEight(const float (*lanes)[16]) {
  __m256 v[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm256_add_ps(_mm256_load_ps(lanes[i]), _mm256_load_ps(lanes[i] + 8));
  }
  __m256 four[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    four[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x20),
                            _mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x31));
  }
  __m256 two[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256d a = _mm256_castps_pd(four[2 * i]), b = _mm256_castps_pd(four[2 * i + 1]);
    two[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_shuffle_pd(a, b, 0x0)),
                           _mm256_castpd_ps(_mm256_shuffle_pd(a, b, 0xF)));
  }
  // Sums 0, 2, 4, 6, 1, 3, 5, 7.
  const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88),
                                    _mm256_shuffle_ps(two[0], two[1], 0xDD));
  return _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// scores[h · kTileKeys + k] = q_h · key_k of kHeads heads and kKeys keys.
template <class Form, int kHeads, int kKeys>
void PairDotBlock(const typename Form::Unit* q, const typename Form::Unit* keys, int64_t row_units,
                  int64_t key_stride, float* scores) {
  using Isa = typename Form::Isa;
  using Float = typename Form::Float;
  alignas(64) float lanes[kHeads * kKeys][16];
  for (int64_t part = 0; part < 16; part += Isa::kLanes) {
    Float total[kHeads][kKeys];
    for (auto& row : total) {
      for (Float& x : row) x = Isa::SetFloat(0.0f);
    }
    for (int64_t u = part; u < row_units; u += Form::kBlockUnits) {
      Float sum[kHeads][kKeys];
      for (auto& row : sum) {
        for (Float& x : row) x = Isa::SetFloat(0.0f);
      }
#pragma GCC unroll 8
      for (int r = 0; r < Form::kRegs; ++r) {
        typename Form::Reg key[kKeys];
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) key[k] = Form::Load(keys + k * key_stride + u + 16 * r);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
          typename Form::Reg query = Form::Load(q + h * row_units + u + 16 * r);
          Form::Keep(&query);
#pragma GCC unroll 4
          for (int k = 0; k < kKeys; ++k) {
            sum[h][k] = Form::MultiplyAdd(sum[h][k], query, key[k]);
          }
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
        for (int k = 0; k < kKeys; ++k) total[h][k] = Isa::AddFloat(total[h][k], sum[h][k]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) {
        Isa::StoreFloat(lanes[h * kKeys + k] + part, total[h][k]);
      }
    }
  }
  constexpr int kSums = kHeads * kKeys;
  alignas(32) float sums[kSums < 8 ? 8 : kSums];
  if constexpr (kSums % 8 == 0) {
    for (int i = 0; i < kSums; i += 8) _mm256_store_ps(sums + i, SumLanesOfEight(lanes + i));
  } else {
    for (int i = 0; i < kSums; ++i) sums[i] = Isa::LaneSum(Isa::Load(lanes[i]));
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) scores[h * kTileKeys + k] = sums[h * kKeys + k];
  }
}

template <class Form, int kHeads>
void PairDotHeads(const typename Form::Unit* q, const typename Form::Unit* keys, int num_keys,
                  int64_t row_units, int64_t key_stride, float* scores) {
  constexpr int kKeys = Form::kKeys;
  int k = 0;
  for (; k + kKeys <= num_keys; k += kKeys) {
    PairDotBlock<Form, kHeads, kKeys>(q, keys + k * key_stride, row_units, key_stride, scores + k);
  }
  for (; k < num_keys; ++k) {
    PairDotBlock<Form, kHeads, 1>(q, keys + k * key_stride, row_units, key_stride, scores + k);
  }
}

}  // namespace
}  // namespace deepinfer
