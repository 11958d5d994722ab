// Unpacks the weights of up to 16 outputs to fp32, [k][output] (linear_tile.h).
// One register holds as many weight rows as it has 32-bit lanes, so AVX2 does 16 outputs in two
// passes. Every value is the product that the reference computes, code times scale, in fp32.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/small_floats.h"
#include "kernels/cpu/unpack_scalar.h"
#include "kernels/ops.h"

namespace deepinfer {
namespace {

template <class Isa>
struct UnpackF32 {
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int64_t kBlockBytes = 4 * kLanes;  // of every row per transposition

  // Transposes `bytes` bytes of each of `rows` rows (stride row_bytes), kLanes lanes at a time,
  // and calls emit(dword, lanes, end): lane j holds dword `dword` of row j, and the elements of a
  // dword from `end` on are behind the row.
  template <class Emit>
  static void ForEachDword(const uint8_t* data, int64_t row_bytes, int64_t rows, int64_t bytes,
                           int64_t length, Emit&& emit) {
    const uint8_t* row[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) row[j] = data + (j < rows ? j : rows - 1) * row_bytes;
    for (int64_t b = 0; b < bytes; b += kBlockBytes) {
      Int lanes[kLanes];
      const int64_t left = bytes - b;
      if (left >= kBlockBytes) {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) {
          Isa::Prefetch(row[j] + b);
          lanes[j] = Isa::LoadBytes(row[j] + b, kBlockBytes);
        }
        Isa::Transpose(lanes);
#pragma GCC unroll 16
        for (int q = 0; q < kLanes; ++q) emit(b / 4 + q, lanes[q], AllInside{});
      } else {
        for (int j = 0; j < kLanes; ++j) lanes[j] = Isa::LoadBytes(row[j] + b, left);
        Isa::Transpose(lanes);
#pragma GCC unroll 16
        for (int q = 0; q < kLanes; ++q) {
          if (4 * q < left) emit(b / 4 + q, lanes[q], length);
        }
      }
    }
  }

  // The end of a row that no element of a full block reaches.
  struct AllInside {};

  static void Put(float* out, int64_t stride, int64_t i, int64_t end, Float v) {
    if (i < end) Put(out, stride, i, AllInside{}, v);
  }
  static void Put(float* out, int64_t stride, int64_t i, AllInside, Float v) {
    Isa::StoreFloat(out + i * stride, v);
  }

  static void RunF32(const uint8_t* data, int64_t k, int64_t rows, int64_t length, float* out,
                     int64_t stride) {
    ForEachDword(data, 4 * k, rows, 4 * length, length,
                 [=](int64_t q, Int v, auto end) { Put(out, stride, q, end, Isa::AsFloat(v)); });
  }

  static void RunBf16(const uint8_t* data, int64_t k, int64_t rows, int64_t length, float* out,
                      int64_t stride) {
    ForEachDword(data, 2 * k, rows, 2 * length, length, [=](int64_t q, Int v, auto end) {
      Put(out, stride, 2 * q, end, Isa::AsFloat(Isa::ShiftLeft(v, 16)));
      Put(out, stride, 2 * q + 1, end, Isa::AsFloat(Isa::And(v, 0xFFFF0000u)));
    });
  }

  static void RunFp8(const uint8_t* data, const uint8_t* scales, int64_t k, int64_t rows,
                     int64_t length, float* out, int64_t stride) {
    ForEachDword(data, k, rows, length, length, [=](int64_t q, Int v, auto end) {
      const Float scale = Isa::SetFloat(ScaleValue(scales[q / 8]));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        Put(out, stride, 4 * q + i, end, Isa::Multiply(DecodeE4m3<Isa>(v, i), scale));
    });
  }

  // Bytes of the groups of one block, up to kLanes / 4, one row a lane; of 4 where there are 4, so
  // that the common case is one load.
  static Int LoadScales(const uint8_t* scales, int64_t row_groups, int64_t rows, int64_t groups) {
    alignas(64) uint32_t bytes[kLanes] = {};
    for (int64_t j = 0; j < kLanes; ++j) {
      const uint8_t* row = scales + (j < rows ? j : rows - 1) * row_groups;
      Isa::Prefetch(row);
      std::memcpy(&bytes[j], row, groups >= 4 ? 4 : static_cast<size_t>(groups));
    }
    return Isa::LoadInts(bytes);
  }

  static void RunFp4(const uint8_t* data, const uint8_t* scales, int64_t k, int64_t rows,
                     int64_t length, float* out, int64_t stride) {
    Float scale = Isa::SetFloat(0.0f);
    Int scale_bytes = Isa::SetInt(0);
    ForEachDword(data, k / 2, rows, length / 2, length, [=](int64_t q, Int v, auto end) mutable {
      if (q % kLanes == 0) {
        scale_bytes = LoadScales(scales + q / 4, k / 32, rows, length / 32 - q / 4);
      }
      if (q % 4 == 0) scale = DecodeScale<Isa>(scale_bytes, static_cast<int>(q % kLanes / 4));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        Put(out, stride, 8 * q + i, end, Isa::Multiply(Isa::LookupE2m1(v, 4 * i), scale));
      }
    });
  }

  // One pass: at most kLanes outputs.
  static void Pass(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                   float* out, int64_t stride) {
    const int64_t k = w.in_features;
    const uint8_t* data = static_cast<const uint8_t*>(w.data);
    switch (w.format) {
      case WeightFormat::kF32:
        return RunF32(data + 4 * (row * k + k0), k, rows, length, out, stride);
      case WeightFormat::kBf16:
        return RunBf16(data + 2 * (row * k + k0), k, rows, length, out, stride);
      case WeightFormat::kFp8Block32:
        if (row / 32 != (row + rows - 1) / 32 || k0 % 32 != 0) break;
        return RunFp8(data + row * k + k0, w.scales + row / 32 * ((k + 31) / 32) + k0 / 32, k, rows,
                      length, out, stride);
      case WeightFormat::kFp4Group32:
        return RunFp4(data + (row * k + k0) / 2, w.scales + row * (k / 32) + k0 / 32, k, rows,
                      length, out, stride);
      case WeightFormat::kFp8Group32:
        break;
    }
    UnpackScalarF32(w, row, rows, k0, length, out, stride);
  }

  static void Run(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                  float* out, int64_t stride) {
    for (int64_t j = 0; j < rows; j += kLanes) {
      Pass(w, row + j, rows - j < kLanes ? rows - j : kLanes, k0, length, out + j, stride);
    }
  }
};

}  // namespace
}  // namespace deepinfer
