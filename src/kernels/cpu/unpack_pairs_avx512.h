// Unpacks the weights of up to 16 outputs to bf16 pairs, [k / 2][output] (linear_tile.h), with
// byte permutations: 64 bytes of each of 16 rows are transposed as 32-bit units, so that a lane
// holds consecutive k of one output, and a table lookup turns codes into bf16 values.
// Internal linkage on purpose (kernel_table.h). AVX-512 with VBMI.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/unpack_scalar.h"
#include "kernels/ops.h"

namespace deepinfer {
namespace {

struct UnpackPairs {
  static constexpr int64_t kBlockBytes = 64;

  static void StorePairs(float* p, __m512i v) { _mm512_storeu_si512(p, v); }

  // Transposes `bytes` bytes of each of `rows` rows, 64 at a time, and calls emit(byte offset,
  // lanes): lane j of lanes[q] holds bytes offset + 4q..4q+3 of row j.
  template <class Emit>
  static void ForEachBlock(const uint8_t* data, int64_t row_bytes, int64_t rows, int64_t bytes,
                           Emit&& emit) {
    const uint8_t* row[16];
    for (int64_t j = 0; j < 16; ++j) row[j] = data + (j < rows ? j : rows - 1) * row_bytes;
    for (int64_t b = 0; b < bytes; b += kBlockBytes) {
      __m512i lanes[16];
      if (bytes - b >= kBlockBytes) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) {
          Avx512::Prefetch(row[j] + b);
          lanes[j] = _mm512_loadu_si512(row[j] + b);
        }
      } else {
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) lanes[j] = Avx512::LoadFew(row[j] + b, bytes - b);
      }
      Avx512::Transpose(lanes);
      emit(b, lanes);
    }
  }

  static void RunBf16(const uint8_t* data, int64_t k, int64_t rows, int64_t length, float* out,
                      int64_t stride) {
    ForEachBlock(data, 2 * k, rows, 2 * length, [=](int64_t b, const __m512i(&lanes)[16]) {
      float* p = out + b / 4 * stride;
      const int64_t pairs = length / 2 - b / 4;
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q) {
        if (q < pairs) StorePairs(p + q * stride, lanes[q]);
      }
    });
  }

  static void RunFp8(const uint8_t* data, const uint8_t* scales, int64_t k, int64_t rows,
                     int64_t length, float* out, int64_t stride) {
    const Fp8ToBf16Table* tables = Fp8ToBf16Tables();
    // In every 128 bits: codes 0, 1 of the four lanes, then codes 2, 3.
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    ForEachBlock(data, k, rows, length, [=](int64_t b, const __m512i(&lanes)[16]) {
      const int64_t groups = (length - b + 31) / 32;
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {  // one scale per 32 k, 8 dwords
        if (g >= groups) break;
        const Fp8ToBf16Table& table = tables[scales[b / 32 + g]];
        const __m512i high0 = _mm512_load_si512(table.high);
        const __m512i high1 = _mm512_load_si512(table.high + 64);
        const __m512i low0 = _mm512_load_si512(table.low);
        const __m512i low1 = _mm512_load_si512(table.low + 64);
        float* p = out + (b / 2 + 16 * g) * stride;
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
          const __m512i codes = _mm512_shuffle_epi8(lanes[8 * g + q], order);
          const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
          // High byte of the magnitude, or the sign bit of the code.
          const __m512i high = _mm512_ternarylogic_epi32(
              _mm512_permutex2var_epi8(high0, codes, high1), codes, sign, 0xF8);
          StorePairs(p + 2 * q * stride, _mm512_unpacklo_epi8(low, high));
          StorePairs(p + (2 * q + 1) * stride, _mm512_unpackhi_epi8(low, high));
        }
      }
    });
  }

  // The scale bytes of up to 4 groups of every row, one dword a row. Bytes of groups that are not
  // there are 127.
  static __m512i LoadScales(const uint8_t* scales, int64_t row_groups, int64_t rows,
                            int64_t groups) {
    alignas(64) uint32_t bytes[16];
    for (int64_t j = 0; j < 16; ++j) {
      const uint8_t* row = scales + (j < rows ? j : rows - 1) * row_groups;
      Avx512::Prefetch(row);
      if (groups >= 4) {
        std::memcpy(&bytes[j], row, 4);
      } else {
        bytes[j] = 0x7F7F7F7Fu;
        std::memcpy(&bytes[j], row, static_cast<size_t>(groups));
      }
    }
    return _mm512_load_si512(bytes);
  }

  // `pairs` pairs of a block, all 64 if kFull. False if a scale can take an E2M1 value out of the
  // normal numbers of bf16.
  template <bool kFull>
  static bool RunFp4Block(__m512i scale_bytes, const __m512i (&lanes)[16], int64_t pairs,
                          float* out, int64_t stride) {
    const __m512i from_two = _mm512_sub_epi8(scale_bytes, _mm512_set1_epi8(2));
    if (_mm512_cmpgt_epu8_mask(from_two, _mm512_set1_epi8(static_cast<char>(250))) != 0) {
      return false;
    }
    // bf16 bits of the E2M1 codes, twice, because the lookup reads five bits of the index.
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, static_cast<short>(0x8000),
        static_cast<short>(0xBF00), static_cast<short>(0xBF80), static_cast<short>(0xBFC0),
        static_cast<short>(0xC000), static_cast<short>(0xC040), static_cast<short>(0xC080),
        static_cast<short>(0xC0C0)));
    const __m512i magnitude = _mm512_set1_epi16(7);
    const __m512i bias = _mm512_set1_epi16(127 << 7);
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      // Exponent offset of group g, in both halves of every lane.
      const __m512i byte = _mm512_and_si512(
          _mm512_srlv_epi32(scale_bytes, _mm512_set1_epi32(8 * g)), _mm512_set1_epi32(0xFF));
      const __m512i both = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 16));
      const __m512i offset = _mm512_sub_epi16(_mm512_slli_epi16(both, 7), bias);
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const int pair = 16 * g + 4 * q + i;
          if (!kFull && pair >= pairs) return true;
          // Bits from 8i and from 8i + 4 of each 32-bit lane, as two 16-bit indices.
          const uint64_t low_lane = static_cast<uint64_t>(8 * i) | static_cast<uint64_t>(8 * i + 4)
                                                                       << 16;
          const uint64_t shifts = low_lane | (low_lane + 0x00200020u) << 32;
          const __m512i index = _mm512_multishift_epi64_epi8(
              _mm512_set1_epi64(static_cast<long long>(shifts)), lanes[4 * g + q]);
          const __m512i value = _mm512_permutexvar_epi16(index, table);
          const __mmask32 nonzero = _mm512_test_epi16_mask(index, magnitude);
          StorePairs(out + pair * stride, _mm512_mask_add_epi16(value, nonzero, value, offset));
        }
      }
    }
    return true;
  }

  static void RunFp4(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride) {
    const int64_t k = w.in_features;
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + (row * k + k0) / 2;
    const uint8_t* scales = w.scales + row * (k / 32) + k0 / 32;
    ForEachBlock(data, k / 2, rows, length / 2, [&](int64_t b, const __m512i(&lanes)[16]) {
      const int64_t left = length - 2 * b;  // elements
      const __m512i scale_bytes = LoadScales(scales + b / 16, k / 32, rows, left / 32);
      float* p = out + b * stride;
      const bool done = left >= 128 ? RunFp4Block<true>(scale_bytes, lanes, 64, p, stride)
                                    : RunFp4Block<false>(scale_bytes, lanes, left / 2, p, stride);
      if (!done) {
        UnpackScalarPairs(w, row, rows, k0 + 2 * b, left < 128 ? left : 128, p, stride);
      }
    });
  }

  static void Run(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                  float* out, int64_t stride) {
    const int64_t k = w.in_features;
    const uint8_t* data = static_cast<const uint8_t*>(w.data);
    switch (w.format) {
      case WeightFormat::kBf16:
        return RunBf16(data + 2 * (row * k + k0), k, rows, length, out, stride);
      case WeightFormat::kFp8Block32:
        if (row / 32 != (row + rows - 1) / 32) break;
        return RunFp8(data + row * k + k0, w.scales + row / 32 * ((k + 31) / 32) + k0 / 32, k, rows,
                      length, out, stride);
      case WeightFormat::kFp4Group32:
        return RunFp4(w, row, rows, k0, length, out, stride);
      case WeightFormat::kF32:
      case WeightFormat::kFp8Group32:
        break;
    }
    UnpackScalarPairs(w, row, rows, k0, length, out, stride);
  }
};

}  // namespace
}  // namespace deepinfer
