// Router and gated feed-forward experts (model.md §9).

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/det_math.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"

namespace deepinfer {

namespace {

// Output of one expert for one row; the routing weight enters before w2.
class ExpertRow {
 public:
  ExpertRow(ReferenceOperators* ops, const MoeShape& shape)
      : ops_(ops),
        shape_(shape),
        gate_(static_cast<size_t>(shape.inter)),
        up_(static_cast<size_t>(shape.inter)),
        codes_(static_cast<size_t>(shape.inter)),
        scales_(static_cast<size_t>(shape.inter / 32)) {}

  // y f32 [dim].
  void Run(const float* x, const Fp8Rows& x_fp8, const ExpertWeights& e, float weight, float* y) {
    Linear(x, x_fp8, e.gate, gate_.data());
    Linear(x, x_fp8, e.up, up_.data());
    const float limit = shape_.swiglu_limit;
    for (size_t i = 0; i < gate_.size(); ++i) {
      const float up = std::clamp(up_[i], -limit, limit);
      gate_[i] = weight * (DetSilu(std::min(gate_[i], limit)) * up);
    }
    Fp8RowsOut product;
    if (x_fp8.codes != nullptr) {
      product = {codes_.data(), scales_.data()};
      ops_->QuantizeFp8(1, gate_.data(), shape_.inter, product);
    }
    Linear(gate_.data(), product, e.down, y);
  }

 private:
  // y = R(W x), from the FP8 row if there is one.
  void Linear(const float* x, const Fp8Rows& x_fp8, const WeightMatrix& w, float* y) {
    if (x_fp8.codes != nullptr) {
      ops_->LinearFp8(1, x_fp8, w, shape_.rounding, y);
      return;
    }
    ops_->LinearF32(1, x, w, y);
    for (int64_t i = 0; i < w.out_features; ++i) y[i] = Round(shape_.rounding, y[i]);
  }

  ReferenceOperators* ops_;
  const MoeShape& shape_;
  std::vector<float> gate_, up_;
  std::vector<uint8_t> codes_, scales_;
};

}  // namespace

void ReferenceOperators::Route(int64_t num_rows, const float* logits, const float* bias,
                               const float* bias_image, const uint8_t* is_image,
                               int32_t num_experts, int32_t topk, float gate_temp,
                               float route_scale, int32_t* experts, float* weights) {
  std::vector<float> score(static_cast<size_t>(num_experts));
  std::vector<float> biased(static_cast<size_t>(num_experts));
  std::vector<int32_t> order(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < num_rows; ++t) {
    const float* b = is_image[t] != 0 ? bias_image : bias;
    for (int32_t e = 0; e < num_experts; ++e) {
      const size_t i = static_cast<size_t>(e);
      score[i] = std::sqrt(DetSoftplus(logits[t * num_experts + e] / gate_temp));
      biased[i] = score[i] + b[e];
    }
    std::iota(order.begin(), order.end(), 0);
    // A NaN never compares greater, so it sinks below every number and the order stays total.
    const auto key = [&](int32_t e) {
      const float v = biased[static_cast<size_t>(e)];
      return std::isnan(v) ? -INFINITY : v;
    };
    std::partial_sort(order.begin(), order.begin() + topk, order.end(), [&](int32_t a, int32_t c) {
      return key(a) != key(c) ? key(a) > key(c) : a < c;
    });
    float sum = 0.0f;
    for (int32_t k = 0; k < topk; ++k)
      sum += score[static_cast<size_t>(order[static_cast<size_t>(k)])];
    for (int32_t k = 0; k < topk; ++k) {
      const int32_t e = order[static_cast<size_t>(k)];
      experts[t * topk + k] = e;
      weights[t * topk + k] = score[static_cast<size_t>(e)] / (sum + 1e-20f) * route_scale;
    }
  }
}

void ReferenceOperators::MoeFfn(int64_t num_rows, const float* x, const Fp8Rows& x_fp8,
                                std::span<const ExpertWeights> experts, const ExpertWeights& shared,
                                const int32_t* topk_experts, const float* topk_weights,
                                const MoeShape& shape, float* out) {
  ExpertRow runner(this, shape);
  std::vector<float> y(static_cast<size_t>(shape.dim));
  for (int64_t t = 0; t < num_rows; ++t) {
    Fp8Rows row_fp8;
    if (x_fp8.codes != nullptr) {
      row_fp8 = {x_fp8.codes + t * shape.dim, x_fp8.scales + t * shape.dim / 32};
    }
    const float* row = x == nullptr ? nullptr : x + t * shape.dim;
    float* sum = out + t * shape.dim;
    std::fill(sum, sum + shape.dim, 0.0f);
    for (int32_t k = 0; k <= shape.topk; ++k) {
      const bool is_shared = k == shape.topk;
      const ExpertWeights& e =
          is_shared ? shared : experts[static_cast<size_t>(topk_experts[t * shape.topk + k])];
      runner.Run(row, row_fp8, e, is_shared ? 1.0f : topk_weights[t * shape.topk + k], y.data());
      for (int64_t d = 0; d < shape.dim; ++d) sum[d] += y[static_cast<size_t>(d)];
    }
    for (int64_t d = 0; d < shape.dim; ++d) sum[d] = Round(shape.rounding, sum[d]);
  }
}

}  // namespace deepinfer
