// Unpacking of any shape and scale, one element at a time: the path of rare cases.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace deepinfer {

// W[row + j, k0 + i] for j < rows, i < length -> out[i · stride + j] as fp32.
void UnpackScalarF32(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride);

// out [k] = bf16 words of codes E4M3 [k] times scales UE8M0 [k/32]. A value below the normal
// numbers may lose bits; the bf16dot family counts it as zero.
void UnpackScalarBf16(const uint8_t* codes, const uint8_t* scales, int64_t k, uint16_t* out);

}  // namespace deepinfer
