// R(x) of model.md §1 for one value.
// Thread rule: pure functions.
#pragma once

#include "kernels/ops.h"
#include "tensor/codecs.h"

namespace deepinfer {

// x, or its nearest bf16 value.
inline float Round(Rounding rounding, float x) {
  return rounding == Rounding::kBf16 ? RoundToBf16(x) : x;
}

}  // namespace deepinfer
