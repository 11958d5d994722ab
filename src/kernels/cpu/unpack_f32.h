// Unpacks the weights of up to 16 outputs to fp32, [k][output] (linear_tile.h). kSwap exchanges
// the elements of every pair of k, the order in which the emulated bf16dot family walks them.
// One register holds as many weight rows as it has 32-bit lanes, so AVX2 does 16 outputs in two
// passes. Every value is the product that the reference computes, code times scale, in fp32.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/unpack_scalar.h"
#include "kernels/ops.h"

namespace deepinfer {
namespace {

// 2^(byte - 127) as fp32 bits; NaN for 255.
inline uint32_t ScaleBits(uint8_t byte) {
  if (byte == 0) return 0x00400000u;
  return byte == 0xFF ? 0x7FC00000u : static_cast<uint32_t>(byte) << 23;
}

inline float ScaleValue(uint8_t byte) {
  const uint32_t bits = ScaleBits(byte);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Isa, int64_t kSwap>
struct UnpackF32 {
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int64_t kBlockBytes = 4 * kLanes;  // of every row per transposition

  // Transposes `bytes` bytes of each of `rows` rows (stride row_bytes), kLanes lanes at a time,
  // and calls emit(dword, lanes) where lane j holds dword `dword` of row j.
  template <class Emit>
  static void ForEachDword(const uint8_t* data, int64_t row_bytes, int64_t rows, int64_t bytes,
                           Emit&& emit) {
    for (int64_t b = 0; b < bytes; b += kBlockBytes) {
      Int lanes[kLanes];
      const int64_t left = bytes - b;
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        const int64_t row = j < rows ? j : rows - 1;
        lanes[j] = Isa::LoadBytes(data + row * row_bytes + b, left);
      }
      Isa::Transpose(lanes);
      const int64_t dwords = left < kBlockBytes ? (left + 3) / 4 : kLanes;
#pragma GCC unroll 16
      for (int q = 0; q < kLanes; ++q) {
        if (q < dwords) emit(b / 4 + q, lanes[q]);
      }
    }
  }

  static void Put(float* out, int64_t stride, int64_t i, int64_t length, Float v) {
    if (i < length) Isa::StoreFloat(out + (i ^ kSwap) * stride, v);
  }

  static void RunF32(const uint8_t* data, int64_t k, int64_t rows, int64_t length, float* out,
                     int64_t stride) {
    ForEachDword(data, 4 * k, rows, 4 * length,
                 [=](int64_t q, Int v) { Put(out, stride, q, length, Isa::AsFloat(v)); });
  }

  static void RunBf16(const uint8_t* data, int64_t k, int64_t rows, int64_t length, float* out,
                      int64_t stride) {
    ForEachDword(data, 2 * k, rows, 2 * length, [=](int64_t q, Int v) {
      Put(out, stride, 2 * q, length, Isa::AsFloat(Isa::ShiftLeft(v, 16)));
      Put(out, stride, 2 * q + 1, length, Isa::AsFloat(Isa::And(v, 0xFFFF0000u)));
    });
  }

  // Value of the E4M3 code in byte `i` of every lane, times scale. Sign and code bits move to the
  // places of an fp32 whose exponent is 120 too small, subnormals included.
  static Float Fp8Value(Int v, int i, Float scale) {
    constexpr uint32_t kNanCode = 0x7Fu << 20;
    const Int bits = Isa::And(Isa::ShiftRightSigned(Isa::ShiftLeft(v, 24 - 8 * i), 4), 0x87F00000u);
    const Float value = Isa::Multiply(Isa::AsFloat(bits), Isa::SetFloat(0x1p120f));
    return Isa::NanWhereEqual(Isa::Multiply(value, scale), Isa::And(bits, 0x7FFFFFFFu), kNanCode);
  }

  static void RunFp8(const uint8_t* data, const uint8_t* scales, int64_t k, int64_t rows,
                     int64_t length, float* out, int64_t stride) {
    ForEachDword(data, k, rows, length, [=](int64_t q, Int v) {
      const Float scale = Isa::SetFloat(ScaleValue(scales[q / 8]));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) Put(out, stride, 4 * q + i, length, Fp8Value(v, i, scale));
    });
  }

  static void RunFp4(const uint8_t* data, const uint8_t* scales, int64_t k, int64_t rows,
                     int64_t length, float* out, int64_t stride) {
    Float scale = Isa::SetFloat(0.0f);
    ForEachDword(data, k / 2, rows, length / 2, [=](int64_t q, Int v) mutable {
      if (q % 4 == 0) {  // a group of 32 begins
        alignas(64) uint32_t bits[kLanes];
        for (int j = 0; j < kLanes; ++j) {
          bits[j] = ScaleBits(scales[(j < rows ? j : rows - 1) * (k / 32) + q / 4]);
        }
        scale = Isa::AsFloat(Isa::LoadInts(bits));
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        Put(out, stride, 8 * q + i, length, Isa::Multiply(Isa::LookupE2m1(v, 4 * i), scale));
      }
    });
  }

  // Codes E4M3 [k] with one scale per 32 -> out f32 [k], element i at i ^ swap.
  static void ExpandFp8Row(const uint8_t* codes, const uint8_t* scales, int64_t k, int64_t swap,
                           float* out) {
    alignas(64) float value[4][kLanes];
    for (int64_t i = 0; i < k; i += 4 * kLanes) {
      const int64_t left = k - i;
      const Int v = Isa::LoadBytes(codes + i, left);
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b) {
        // Lane j holds code i + 4j + b; a lane's four codes share a group.
        Isa::StoreFloat(value[b], Fp8Value(v, b, Isa::SetFloat(1.0f)));
      }
      for (int64_t j = 0; j < 4 * kLanes && j < left; ++j) {
        out[(i + j) ^ swap] = value[j % 4][j / 4] * ScaleValue(scales[(i + j) / 32]);
      }
    }
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
    UnpackScalarF32(w, row, rows, k0, length, kSwap, out, stride);
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
