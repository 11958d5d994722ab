#include "model/linear_runner.h"

namespace deepinfer {

ActivationRows LinearRunner::Quantize(const float* x, int64_t num_rows, int64_t k) const {
  ActivationRows rows;
  rows.x = x;
  if (!arithmetic_.fp8_activations) return rows;
  const Fp8RowsOut out = NewFp8Rows(num_rows, k);
  ops_->QuantizeFp8(num_rows, x, k, out);
  rows.fp8 = out;
  return rows;
}

Fp8RowsOut LinearRunner::NewFp8Rows(int64_t num_rows, int64_t k) const {
  return {workspace_->Array<uint8_t>(num_rows * k), workspace_->Array<uint8_t>(num_rows * k / 32)};
}

void LinearRunner::Quantized(const ActivationRows& x, int64_t num_rows,
                             std::span<const LinearOutput> outputs) const {
  if (x.fp8.codes != nullptr) {
    return ops_->LinearFp8(num_rows, x.fp8, outputs, arithmetic_.stream);
  }
  for (const LinearOutput& output : outputs) {
    ops_->LinearF32(num_rows, x.x, *output.weight, output.y);
  }
}

void LinearRunner::Quantized(const ActivationRows& x, int64_t num_rows, const WeightMatrix& w,
                             float* y) const {
  const LinearOutput output{&w, y};
  Quantized(x, num_rows, {&output, 1});
}

void LinearRunner::Bf16(const float* x, int64_t num_rows, const WeightMatrix& w, Rounding rounding,
                        float* y) const {
  if (arithmetic_.stream == Rounding::kBf16) {
    ops_->LinearBf16(num_rows, x, w, rounding, y);
  } else {
    ops_->LinearF32(num_rows, x, w, y);
  }
}

void LinearRunner::AttentionOutput(const AttentionWeights& w, const float* o, int64_t num_rows,
                                   float* out) const {
  const int64_t width = config_.o_groups * config_.o_lora_rank;
  float* groups = workspace_->Array<float>(num_rows * width);
  if (arithmetic_.wo_a_fp8) {
    const ActivationRows rows =
        Quantize(o, num_rows, int64_t{config_.num_heads} * config_.head_dim);
    ops_->GroupedLinearFp8(num_rows, rows.fp8, w.wo_a, config_.o_groups, groups);
  } else {
    ops_->GroupedLinearF32(num_rows, o, w.wo_a, config_.o_groups, groups);
  }
  Quantized(Quantize(groups, num_rows, width), num_rows, w.wo_b, out);
}

}  // namespace deepinfer
