// Unpacking of weights for any shape, one element at a time: the path of rare cases (scale blocks
// that a group of outputs straddles, scales at the ends of their range).
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace deepinfer {

// W[row + j, k0 + i] for j < rows, i < length -> out[(i ^ swap) · stride + j] as fp32. swap is 0,
// or 1 to exchange the elements of every pair.
void UnpackScalarF32(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     int64_t swap, float* out, int64_t stride);

// The same as bf16 pairs: out[(i / 2) · stride + j] holds elements i (low half) and i + 1.
void UnpackScalarPairs(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                       float* out, int64_t stride);

// bf16 of code · 2^(scale - 127) for every E4M3 code without its sign: high and low bytes apart,
// so that a byte permutation looks both up. Exact but for results below the normal numbers of
// bf16, which the bf16dot family counts as zero.
struct Fp8ToBf16Table {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};
// 256 tables, one for each scale byte.
const Fp8ToBf16Table* Fp8ToBf16Tables();

}  // namespace deepinfer
