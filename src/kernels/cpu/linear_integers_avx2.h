// FP4 weights times few FP8 rows in integers on AVX2. The eight products of a lane and block
// (docs/numerics.md §7, Lane16 pairs) are multiples of one power of two; where every partial sum of
// theirs is below 2^24 such units it is exact in fp32, so that an integer sum has the same bits and
// needs no chain of multiply-adds.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_dot_avx2.h"

namespace deepinfer {
namespace {

// Rows beyond which multiply-adds are as fast, and the longest rows that are prepared.
inline constexpr int kMaxIntegerRows = 2;
inline constexpr int64_t kMaxIntegerBlocks = 64;
// Fewer outputs do not pay for preparing the rows.
inline constexpr int64_t kMinIntegerOutputs = 32;

// One half of a block of a row. Lane j has the bytes of k = 8j, 8j + 2, 8j + 4, 8j + 6 in even[j]
// and the others in odd[j]; three signed digits to base 256.
struct IntegerHalf {
  __m256i even[3];
  __m256i odd[3];
  __m256i offset;  // kWeightOffset times the sum of a lane
};
struct IntegerBlock {
  IntegerHalf half[2];
  // Per group of 32 what the exponent of its weights' scale lacks, modulo 256.
  uint32_t exponents;
};
// Added to twice a weight, so that it is not negative.
inline constexpr int kWeightOffset = 12;

// Largest sum of eight magnitudes for which no sum of products with weights up to 12 halves exceeds
// 2^24.
inline constexpr int32_t kMaxLaneSum = (1 << 24) / 12;

// The k-th of the eight values of every lane.
inline __m256 LaneValue(const std::byte* half, int k) {
  const int step = k < 4 ? 2 * k + 1 : 2 * (k - 4);  // inverse of DotAvx2::StepOffset
  return DotAvx2::LoadReg(half + step * DotAvx2::kRegBytes);
}

// 2^17 over the power of two below the largest magnitude of lanes 0..3, and the same for 4..7:
// values of four significant bits and fifteen exponents become integers below 2^18.
inline __m256i GroupExponents(const std::byte* half) {
  const __m256i mask = _mm256_set1_epi32(0x7F800000);
  __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    const __m256i bits = _mm256_castps_si256(LaneValue(half, k));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, mask));
  }
  largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0x4E));
  largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0xB1));
  return _mm256_srli_epi32(largest, 23);
}

// Bytes of four integers to the four bytes of a lane.
inline __m256i PackLanes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i byte = _mm256_set1_epi32(0xFF);
  const __m256i low =
      _mm256_or_si256(_mm256_and_si256(a, byte), _mm256_slli_epi32(_mm256_and_si256(b, byte), 8));
  const __m256i high =
      _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(c, byte), 16), _mm256_slli_epi32(d, 24));
  return _mm256_or_si256(low, high);
}

// False if a lane is too large. exponents: biased exponents of the row's numbers.
inline bool PrepareHalf(const std::byte* values, __m256i exponents, IntegerHalf* out) {
  // 2^(17 - exponent), for exponents of moderate rows a normal number.
  const __m256i bits =
      _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(127 + 17 + 127), exponents), 23);
  const __m256 to_integer = _mm256_castsi256_ps(bits);
  __m256i digit[3][8];
  __m256i sum = _mm256_setzero_si256(), magnitude = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    __m256i rest = _mm256_cvtps_epi32(_mm256_mul_ps(LaneValue(values, k), to_integer));
    sum = _mm256_add_epi32(sum, rest);
    magnitude = _mm256_add_epi32(magnitude, _mm256_abs_epi32(rest));
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      digit[i][k] = _mm256_srai_epi32(_mm256_slli_epi32(rest, 24), 24);
      rest = _mm256_srai_epi32(_mm256_sub_epi32(rest, digit[i][k]), 8);
    }
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    out->even[i] = PackLanes(digit[i][0], digit[i][2], digit[i][4], digit[i][6]);
    out->odd[i] = PackLanes(digit[i][1], digit[i][3], digit[i][5], digit[i][7]);
  }
  out->offset = _mm256_mullo_epi32(sum, _mm256_set1_epi32(kWeightOffset));
  const __m256i is_large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kMaxLaneSum));
  return _mm256_testz_si256(is_large, is_large) != 0;
}

// A row for FP8 and FP4 weights (linear_dot_rows.h). False if integers would not do.
[[gnu::noinline]] inline bool PrepareIntegerRow(const std::byte* row, int64_t blocks,
                                                IntegerBlock* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    const std::byte* values = DotRowBlock<DotAvx2>(row, b);
    alignas(32) uint32_t of_half[2][8];
    for (int h = 0; h < 2; ++h) {
      const std::byte* half = values + h * DotAvx2::kSteps * DotAvx2::kRegBytes;
      // Zeros count as numbers of the row's smallest exponent.
      const __m256i exponents =
          _mm256_max_epi32(GroupExponents(half), _mm256_set1_epi32(127 + 60 - 41));
      _mm256_store_si256(reinterpret_cast<__m256i*>(of_half[h]), exponents);
      if (!PrepareHalf(half, exponents, &out[b].half[h])) return false;
    }
    // unit = 2^(exponent - 127 - 17); rows carry 2^60 and weights count in halves.
    uint32_t all = 0;
    for (int g = 0; g < 4; ++g) {
      const uint32_t lacking = of_half[g / 2][g % 2 * 4] - 127 - 17 - 60 - 1;
      all |= (lacking & 0xFF) << (8 * g);
    }
    out[b].exponents = all;
  }
  return true;
}

// Sums of the products of one half: weights + kWeightOffset of even and odd k.
inline __m256 IntegerSums(__m256i even, __m256i odd, const IntegerHalf& x) {
  __m256i digit[3];
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    digit[i] = _mm256_add_epi16(_mm256_maddubs_epi16(even, x.even[i]),
                                _mm256_maddubs_epi16(odd, x.odd[i]));
  }
  const __m256i ones = _mm256_set1_epi16(1), base = _mm256_set1_epi16(256);
  const __m256i low = _mm256_sub_epi32(_mm256_madd_epi16(digit[0], ones), x.offset);
  const __m256i middle = _mm256_madd_epi16(digit[1], base);
  const __m256i high = _mm256_slli_epi32(_mm256_madd_epi16(digit[2], base), 8);
  return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(low, middle), high));
}

template <int kRows>
[[gnu::noinline]] void IntegerOutput(const LinearTask& task, const StoredRows<Fp4Avx2>& rows,
                                     const IntegerBlock (*x)[kMaxIntegerBlocks], int64_t n) {
  const __m256i twice_weight =
      Fp4Avx2::Twice(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256 acc[kRows][2];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  StoredRows<Fp4Avx2>::Tail tail;
  const WeightsAhead ahead = rows.DataAhead(task);
  for (int64_t b = 0; b < rows.blocks(); ++b) {
    const StoredBlock block = rows.Block(n, b, &tail);
    ahead.Ask<Fp4Avx2::kBlockBytes>(block.bytes + Fp4Avx2::kAheadBytes);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256i codes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.bytes + 32 * h));
      const __m256i even = _mm256_shuffle_epi8(twice_weight, _mm256_and_si256(codes, nibble));
      const __m256i odd =
          _mm256_shuffle_epi8(twice_weight, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        // Byte by byte: what is lacking plus the exponent of the weights' scale.
        const __m256i bytes =
            _mm256_add_epi8(_mm256_set1_epi32(static_cast<int>(block.scales)),
                            _mm256_set1_epi32(static_cast<int>(x[m][b].exponents)));
        acc[m][h] = _mm256_fmadd_ps(IntegerSums(even, odd, x[m][b].half[h]),
                                    ScalesAvx2<0>::OfBytes(bytes, h), acc[m][h]);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    alignas(32) float lanes[16];
    DotAvx2::Store(lanes, acc[m][0]);
    DotAvx2::Store(lanes + 8, acc[m][1]);
    task.y[m][task.y_column + n - task.first_output] = DotAvx2::LaneSum(lanes);
  }
}

template <int kRows>
void RunIntegerRows(const LinearTask& task, const StoredRows<Fp4Avx2>& rows,
                    const IntegerBlock (*x)[kMaxIntegerBlocks]) {
  if constexpr (kRows > 1) {
    if (task.num_rows < kRows) return RunIntegerRows<kRows - 1>(task, rows, x);
  }
  const FlushDenormalsScope scope;
  for (int64_t n = task.first_output; n < task.first_output + task.num_outputs; ++n) {
    if (rows.HaveModerateScales(n, 1)) {
      IntegerOutput<kRows>(task, rows, x, n);
    } else {
      RunExactOutput(task, rows, n);
    }
  }
}

// All of a task of moderate rows, or false and no result.
inline bool RunIntegers(const LinearTask& task, const StoredRows<Fp4Avx2>& rows) {
  if (task.num_rows > kMaxIntegerRows || task.num_outputs < kMinIntegerOutputs ||
      rows.blocks() > kMaxIntegerBlocks) {
    return false;
  }
  alignas(64) IntegerBlock x[kMaxIntegerRows][kMaxIntegerBlocks];
  for (int64_t m = 0; m < task.num_rows; ++m) {
    if (!PrepareIntegerRow(task.x[m], rows.blocks(), x[m])) return false;
  }
  RunIntegerRows<kMaxIntegerRows>(task, rows, x);
  return true;
}

}  // namespace
}  // namespace deepinfer
