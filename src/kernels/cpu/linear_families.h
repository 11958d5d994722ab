// The two kernel families on fp32 lanes, for linear_tile.h. bf16dot on pairs is in
// linear_avx512bf16.cc, the only level that has the instruction.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/unpack_f32.h"
#include "kernels/denormals.h"

namespace deepinfer {
namespace {

// Half of the smallest first-level cache the levels run on.
inline constexpr int64_t kHalfCacheBytes = 16384;

struct NoScope {
  NoScope() {}
};

template <class IsaT, class Blocking>
struct F32FmaFamily {
  using Isa = IsaT;
  using RowScope = NoScope;
  static constexpr int64_t kElementsPerStep = 1;
  static constexpr int64_t kUnpackedBytes = kHalfCacheBytes;
  template <int kVecs>
  static constexpr int MaxRows() {
    return Blocking::template MaxRows<kVecs>();
  }
  static typename Isa::Vec Step(typename Isa::Vec acc, typename Isa::Vec w, typename Isa::Vec x) {
    return Isa::Fma(w, x, acc);
  }
  static void Unpack(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride) {
    UnpackF32<Isa, 0>::Run(w, row, rows, k0, length, out, stride);
  }
};

// vdpbf16ps takes the odd element of a pair first and flushes denormals. With the elements of
// every pair exchanged in weights and activations, plain fma in a flushing scope does the same.
template <class IsaT, class Blocking>
struct EmulatedDotFamily : F32FmaFamily<IsaT, Blocking> {
  using RowScope = FlushDenormalsScope;
  // 64 outputs then take a full register of FP4 codes from every row.
  static constexpr int64_t kUnpackedBytes = kHalfCacheBytes * IsaT::kLanes / 8;
  static void Unpack(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride) {
    UnpackF32<IsaT, 1>::Run(w, row, rows, k0, length, out, stride);
  }
};

// Activation row of EmulatedDotFamily: fp32 [k], the elements of every pair exchanged.
template <class Isa>
void ExpandSwappedRow(const uint8_t* codes, const uint8_t* scales, int64_t k, std::byte* out) {
  UnpackF32<Isa, 0>::ExpandFp8Row(codes, scales, k, 1, reinterpret_cast<float*>(out));
}

template <class Family>
void FillWidths(LinearKernel (&kernels)[kNumLinearWidths]) {
  kernels[0] = RunLinearTask<Family, 1>;
  kernels[1] = RunLinearTask<Family, 2>;
  kernels[2] = RunLinearTask<Family, 4>;
}

}  // namespace
}  // namespace deepinfer
