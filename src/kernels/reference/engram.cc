// Engram table rows and their gated write-back (model.md §10.3).

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/det_math.h"
#include "kernels/reference/lane16.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"
#include "kernels/reference/weight_row.h"
#include "tensor/codecs.h"

namespace deepinfer {

void ReferenceOperators::EngramGather(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                                      const WeightMatrix& table, float* out) {
  for (int64_t i = 0; i < num_rows * num_columns; ++i) {
    UnpackWeightRow(table, ids[i], out + i * table.in_features);
  }
}

void ReferenceOperators::EngramGatherFp8(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                                         const WeightMatrix& table, Fp8RowsOut out) {
  const int64_t width = table.in_features, groups = width / 32;
  const uint8_t* codes = static_cast<const uint8_t*>(table.data);
  for (int64_t i = 0; i < num_rows * num_columns; ++i) {
    std::memcpy(out.codes + i * width, codes + ids[i] * width, static_cast<size_t>(width));
    std::memcpy(out.scales + i * groups, table.scales + ids[i] * groups,
                static_cast<size_t>(groups));
  }
}

void ReferenceOperators::EngramGate(int64_t num_rows, float* h, const float* kvv,
                                    const uint16_t* q_weight, const uint16_t* k_weight,
                                    const uint8_t* is_image, const HcShape& shape,
                                    Rounding rounding) {
  const int64_t dim = shape.dim;
  const int n = shape.num_copies;
  const float inverse_sqrt_dim = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t t = 0; t < num_rows; ++t) {
    if (is_image[t] != 0) continue;
    const float* value = kvv + (t * (n + 1) + n) * dim;
    for (int c = 0; c < n; ++c) {
      float* hc = h + (t * n + c) * dim;
      const float* key = kvv + (t * (n + 1) + c) * dim;
      float lane[16] = {};
      for (int64_t i = 0; i < dim; ++i) {
        const float weight =
            Bf16ToFloat(q_weight[c * dim + i]) * Bf16ToFloat(k_weight[c * dim + i]);
        lane[i & 15] = std::fma(hc[i] * weight, key[i], lane[i & 15]);
      }
      float d = ReduceLanes(lane);
      d *= 1.0f / std::sqrt(Lane16Dot(hc, hc, dim) / static_cast<float>(dim) + shape.rms_eps);
      d *= 1.0f / std::sqrt(Lane16Dot(key, key, dim) / static_cast<float>(dim) + shape.rms_eps);
      d *= inverse_sqrt_dim;
      const float gate = DetSigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d));
      for (int64_t i = 0; i < dim; ++i) hc[i] = Round(rounding, hc[i] + gate * value[i]);
    }
  }
}

}  // namespace deepinfer
