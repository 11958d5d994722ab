// One row of a stored weight matrix as fp32; exact for every format.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace deepinfer {

// out f32 [in_features] = W[row, :].
void UnpackWeightRow(const WeightMatrix& w, int64_t row, float* out);

}  // namespace deepinfer
