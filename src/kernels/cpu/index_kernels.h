// Index scores of one row, and what selection scans scores with, for every instruction set.
// Internal linkage on purpose (kernel_table.h).
//
// Products of FP4 codes are small integers. When the exponents of a row and a key lie close enough
// together, every partial sum of q·k is exact in fp32, so the order of the sum does not show, and
// integer instructions give the bits of Lane16 (docs/numerics.md §7) at several times the speed.
// Keys for which this does not hold go through fp32.
// Thread rule: pure functions on the data of one task and its scratch.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_keys.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_math.h"

namespace deepinfer {
namespace {

// Codes are stored as twice their value, and keys with an offset that makes them unsigned.
inline constexpr int kKeyOffset = 12;
inline constexpr int kMaxCode = 12;
inline constexpr int64_t kIndexGroup = 32;

// Exponent field of the scale that turns values with the largest magnitude `bits` into E2M1 codes:
// 2^ceil(log2(largest / 6)), as the quantiser takes it.
inline int32_t ScaleExponent(uint32_t bits) {
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  const float ratio = largest * (1.0f / 6.0f);
  uint32_t ratio_bits;
  std::memcpy(&ratio_bits, &ratio, sizeof ratio_bits);
  return static_cast<int32_t>(ratio_bits >> 23) + ((ratio_bits & 0x7FFFFF) != 0 ? 1 : 0);
}

inline float PowerOfTwo(int32_t exponent_field) {
  const uint32_t bits = static_cast<uint32_t>(exponent_field) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Codes of one group of 32 values, and their sum. False when a value is not on the FP4 grid.
inline bool EncodeQueryGroup(const float* q, int32_t exponent, int32_t* codes, int32_t* sum) {
  const float inverse = 2.0f * PowerOfTwo(254 - exponent);
  int32_t off_grid = 0, total = 0;
  for (int i = 0; i < kIndexGroup; ++i) {
    const float scaled = q[i] * inverse;
    const int32_t code = static_cast<int32_t>(scaled);
    off_grid |= static_cast<float>(code) != scaled || code > kMaxCode || code < -kMaxCode;
    codes[i] = code;
    total += code;
  }
  *sum = total;
  return off_grid == 0;
}

// Largest difference of exponents of products that keeps every sum of `dim` of them exact.
inline int32_t MaxExponentSpread(int64_t dim) {
  int32_t spread = 0;
  while (dim * kMaxCode * kMaxCode << (spread + 1) <= int64_t{1} << 24) ++spread;
  return spread;
}

// Fills the arrays of the query from q f32 [num_heads, dim]. Exponents stay so far inside the
// range of fp32 that no product of a query and a key leaves it.
template <class Isa>
void PrepareIndexQuery(const float* q, int32_t num_heads, int64_t dim, IndexQuery* query) {
  constexpr int32_t kLowestExponent = 127 - 40, kHighestExponent = 127 + 40;
  const int64_t padded = query->padded_heads;
  const int64_t groups = dim / kIndexGroup;
  std::memset(query->codes, 0, static_cast<size_t>(padded * dim));
  std::memset(query->start, 0, static_cast<size_t>(groups * padded) * 4);
  std::memset(query->scales, 0, static_cast<size_t>(groups * padded) * 4);
  query->is_exact = false;
  int32_t spread = 0;
  for (int64_t h = 0; h < num_heads; ++h) {
    int32_t lowest = kHighestExponent, highest = kLowestExponent;
    for (int64_t g = 0; g < groups; ++g) {
      const float* values = q + h * dim + g * kIndexGroup;
      uint32_t largest = 0;
      for (int i = 0; i < kIndexGroup; ++i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        bits &= 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
      }
      if (largest == 0) continue;  // adds nothing, whatever its scale
      const int32_t exponent = ScaleExponent(largest);
      if (exponent < kLowestExponent || exponent > kHighestExponent) return;
      int32_t codes[kIndexGroup], sum;
      if (!EncodeQueryGroup(values, exponent, codes, &sum)) return;
      lowest = exponent < lowest ? exponent : lowest;
      highest = exponent > highest ? exponent : highest;
      for (int64_t i = 0; i < kIndexGroup; ++i) {
        const int64_t quad = g * 8 + i / 4;
        query->codes[(quad * padded + h) * 4 + i % 4] = static_cast<int8_t>(codes[i]);
      }
      query->start[(g * padded + h) * 2] = static_cast<int16_t>(-kKeyOffset * sum);
      query->scales[g * padded + h] = 0.25f * PowerOfTwo(exponent);
    }
    if (highest - lowest > spread) spread = highest - lowest;
  }
  query->max_key_spread = MaxExponentSpread(dim) - spread;
  query->is_exact = query->max_key_spread >= 0;
}

// Whether the key with these UE8M0 scales has exact dots with the query.
inline bool IsExactKey(const IndexQuery& query, const uint8_t* scales, int64_t groups) {
  constexpr int kLowest = 127 - 40, kHighest = 127 + 40;
  int lowest = kHighest, highest = kLowest;
  for (int64_t g = 0; g < groups; ++g) {
    if (scales[g] < kLowest || scales[g] > kHighest) return false;
    lowest = scales[g] < lowest ? scales[g] : lowest;
    highest = scales[g] > highest ? scales[g] : highest;
  }
  return highest - lowest <= query.max_key_spread;
}

// n E2M1 codes -> n bytes: twice the value plus kKeyOffset.
inline void UnpackKeyCodes(const uint8_t* codes, int64_t n, uint8_t* out) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m128i low = _mm_set1_epi8(0x0F);
  for (int64_t i = 0; i < n; i += 32) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i even = _mm_and_si128(pairs, low);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_shuffle_epi8(table, _mm_unpacklo_epi8(even, odd)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 16),
                     _mm_shuffle_epi8(table, _mm_unpackhi_epi8(even, odd)));
  }
}

// dots[key, head] of kKeys keys and kVecs vectors of heads from `head` on.
template <class Isa, int kKeys, int kVecs>
void IntegerDots(const IndexQuery& query, int64_t head, const uint8_t* keys,
                 const float* key_scales, int64_t dim, float* dots) {
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  const int64_t padded = query.padded_heads, groups = dim / kIndexGroup;
  Float total[kKeys][kVecs];
  for (auto& row : total) {
    for (Float& x : row) x = Isa::SetFloat(0.0f);
  }
  const int8_t* codes = query.codes + 4 * head;
  for (int64_t g = 0; g < groups; ++g) {
    Int acc[kKeys][kVecs];
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        acc[k][v] = Isa::LoadInt(query.start + 2 * (g * padded + head + v * Isa::kLanes));
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i, codes += 4 * padded) {
      Int q[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) q[v] = Isa::LoadInt(codes + 4 * v * Isa::kLanes);
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) {
        const Int code = Isa::BroadcastInt(keys + k * dim + g * kIndexGroup + 4 * i);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          acc[k][v] = Isa::AddShorts(acc[k][v], Isa::MultiplyBytes(code, q[v]));
        }
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) {
      const Float key_scale = Isa::SetFloat(key_scales[k * groups + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const float* scales = query.scales + g * padded + head + v * Isa::kLanes;
        total[k][v] = Isa::FmaFloat(Isa::ToFloat(Isa::AddHalves(acc[k][v])),
                                    Isa::Multiply(Isa::LoadFloats(scales), key_scale), total[k][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < kKeys; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      Isa::StoreFloat(dots + k * padded + head + v * Isa::kLanes, total[k][v]);
    }
  }
}

// All heads of kKeys keys: two vectors of heads at a time leave registers for the sums.
template <class Isa, int kKeys>
void IntegerDotsOfAllHeads(const IndexQuery& query, const uint8_t* keys, const float* key_scales,
                           int64_t dim, float* dots) {
  int64_t head = 0;
  for (; head + 2 * Isa::kLanes <= query.padded_heads; head += 2 * Isa::kLanes) {
    IntegerDots<Isa, kKeys, 2>(query, head, keys, key_scales, dim, dots);
  }
  if (head < query.padded_heads) {
    IntegerDots<Isa, kKeys, 1>(query, head, keys, key_scales, dim, dots);
  }
}

// sums[key] = sum over heads ascending of relu(dots[key, head]) · w[head], kLanes keys.
template <class Isa>
void WeighHeads(const float* dots, int64_t padded, int32_t heads, const float* w, float* sums) {
  using Float = typename Isa::Float;
  Float sum = Isa::SetFloat(0.0f);
  for (int32_t first = 0; first < heads; first += Isa::kLanes) {
    typename Isa::Int block[Isa::kLanes];
#pragma GCC unroll 16
    for (int k = 0; k < Isa::kLanes; ++k) block[k] = Isa::LoadInt(dots + k * padded + first);
    Isa::Transpose(block);
    const int32_t count = heads - first < Isa::kLanes ? heads - first : Isa::kLanes;
    for (int32_t h = 0; h < count; ++h) {
      const Float positive = Isa::MaxFloat(Isa::SetFloat(0.0f), Isa::AsFloat(block[h]));
      sum = Isa::FmaFloat(positive, Isa::SetFloat(w[first + h]), sum);
    }
  }
  Isa::StoreFloat(sums, sum);
}

// Where the codes and scales of entry j are.
struct KeyPlace {
  const uint8_t* codes;
  const uint8_t* scales;
};
inline KeyPlace PlaceOfKey(const KvPages& pages, int64_t j) {
  // 32 bits: this division is a good part of what a key costs.
  const uint32_t per_block = static_cast<uint32_t>(pages.entries_per_block);
  const uint32_t block = static_cast<uint32_t>(j) / per_block;
  const int64_t slot = static_cast<uint32_t>(j) % per_block;
  const uint8_t* page = Bytes(pages.pool) + pages.block_table[block] * pages.block_stride;
  return {page + pages.index_code_offset + slot * pages.index_code_bytes,
          page + pages.index_scale_offset + slot * pages.index_scale_bytes};
}

// False when a key is outside the range of exact sums; nothing is written then.
template <class Isa>
bool IntegerIndexScores(const IndexTask& task) {
  constexpr int kKeys = Isa::kLanes == 16 ? 4 : 2;
  const int64_t d = task.shape->head_dim, groups = d / kIndexGroup;
  const IndexQuery& query = *task.query;
  const KvPages& pages = task.row->pages;
  float* dots = task.scratch;
  float* key_scales = dots + kTileKeys * query.padded_heads;
  uint8_t* codes = reinterpret_cast<uint8_t*>(key_scales + kTileKeys * groups);
  const int32_t padded_keys = (task.num_entries + Isa::kLanes - 1) / Isa::kLanes * Isa::kLanes;
  for (int32_t i = 0; i < padded_keys; ++i) {
    // The last key again fills the block.
    const int64_t j = task.entries[i < task.num_entries ? i : task.num_entries - 1];
    const KeyPlace place = PlaceOfKey(pages, j);
    if (!IsExactKey(query, place.scales, groups)) return false;
    for (int64_t g = 0; g < groups; ++g) key_scales[i * groups + g] = PowerOfTwo(place.scales[g]);
    UnpackKeyCodes(place.codes, d, codes + i * d);
  }
  for (int32_t i = 0; i < padded_keys; i += kKeys) {
    IntegerDotsOfAllHeads<Isa, kKeys>(query, codes + i * d, key_scales + i * groups, d,
                                      dots + i * query.padded_heads);
  }
  alignas(64) float sums[kTileKeys];
  for (int32_t i = 0; i < padded_keys; i += Isa::kLanes) {
    WeighHeads<Isa>(dots + i * query.padded_heads, query.padded_heads, task.shape->num_heads,
                    task.w, sums + i);
  }
  for (int32_t i = 0; i < task.num_entries; ++i) task.scores[task.entries[i]] = sums[i];
  return true;
}

template <class Isa>
void FloatIndexScores(const IndexTask& task) {
  using Vec = typename Isa::Vec;
  const int64_t d = task.shape->head_dim;
  const int32_t heads = task.shape->num_heads;
  float* keys = task.scratch;
  float* dots = keys + kTileKeys * d;
  for (int32_t i = 0; i < task.num_entries; ++i) {
    const int64_t j = task.entries[i];
    LoadIndexKeyRow<Isa>(task.shape->format, task.row->pages.IndexCodes(j),
                         task.row->pages.IndexScales(j), d, keys + i * d);
  }
  DotMatrix<Isa>(task.q, d, heads, keys, d, task.num_entries, d, dots, kTileKeys);
  alignas(64) float sums[kTileKeys];
  ForEachVector(task.num_entries, [&](int64_t i, int n) {
    Vec sum = Isa::Zero();
    for (int32_t h = 0; h < heads; ++h) {
      // Zero is the first operand, so that a NaN passes.
      const Vec positive = Isa::Max(Isa::Zero(), LoadUpTo16<Isa>(dots + h * kTileKeys + i, n));
      sum = Isa::Fma(positive, Isa::Set1(task.w[h]), sum);
    }
    Isa::Store(sums + i, sum);
  });
  for (int32_t i = 0; i < task.num_entries; ++i) task.scores[task.entries[i]] = sums[i];
}

template <class Isa>
void RunIndexScores(const IndexTask& task) {
  if (task.query != nullptr && task.query->is_exact && IntegerIndexScores<Isa>(task)) return;
  FloatIndexScores<Isa>(task);
}

// Appends the elements of x [n] above the threshold, and first plus their places. Returns their
// number.
template <class Isa>
int64_t ScanAbove(const float* x, int64_t n, float threshold, int32_t first, float* values,
                  int32_t* indices) {
  int64_t count = 0;
  ForEachVector(n, [&](int64_t i, int lanes) {
    uint32_t above = Isa::MaskGreater(LoadUpTo16<Isa>(x + i, lanes), threshold);
    above &= (1u << lanes) - 1;
    for (; above != 0; above &= above - 1) {
      const int lane = __builtin_ctz(above);
      values[count] = x[i + lane];
      indices[count++] = first + static_cast<int32_t>(i) + lane;
    }
  });
  return count;
}

// out[b] = largest of x [8·b, 8·b + 8), NaN counted as -infinity.
inline void MaximaOf8(const float* x, int64_t num_blocks, float* out) {
  const __m256 lowest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t b = 0; b < num_blocks; ++b) {
    // The second operand is the result where the first is NaN.
    const __m256 block = _mm256_max_ps(_mm256_loadu_ps(x + 8 * b), lowest);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(block), _mm256_extractf128_ps(block, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    out[b] = _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
}

template <class Isa>
void FillIndex(IndexKernels* kernels) {
  kernels->head_lanes = Isa::kLanes;
  kernels->prepare_query = PrepareIndexQuery<Isa>;
  kernels->index_scores = RunIndexScores<Isa>;
  kernels->scan_above = ScanAbove<Isa>;
  kernels->maxima_of_8 = MaximaOf8;
}

}  // namespace
}  // namespace deepinfer
