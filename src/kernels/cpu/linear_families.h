// The f32fma family for linear_tile.h.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/unpack_f32.h"

namespace deepinfer {
namespace {

// Half of the smallest first-level cache the levels run on.
inline constexpr int64_t kHalfCacheBytes = 16384;

template <class IsaT, class Blocking>
struct F32FmaFamily {
  using Isa = IsaT;
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
    UnpackF32<Isa>::Run(w, row, rows, k0, length, out, stride);
  }
};

template <class Family>
void FillWidths(LinearKernel (&kernels)[kNumLinearWidths]) {
  kernels[0] = RunLinearTask<Family, 1>;
  kernels[1] = RunLinearTask<Family, 2>;
  kernels[2] = RunLinearTask<Family, 4>;
}

}  // namespace
}  // namespace deepinfer
