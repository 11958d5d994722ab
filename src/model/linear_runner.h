// Linears of a step in the arithmetic of the model: which operator a weight of the checkpoint
// takes, and in which form its rows. Internal to model/. Thread rule: lives inside one call on the
// step thread; rows last as long as the workspace's scope.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "model/config.h"
#include "model/numerics.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

// Activation rows in both forms a linear may want: f32, and FP8 where the mode asks for it.
struct ActivationRows {
  const float* x = nullptr;
  Fp8Rows fp8;
};

class LinearRunner {
 public:
  // All but arithmetic are borrowed.
  LinearRunner(Operators* ops, const ModelConfig* config, const Arithmetic& arithmetic,
               Workspace* workspace)
      : ops_(ops), config_(*config), arithmetic_(arithmetic), workspace_(workspace) {}

  // Of x f32 [num_rows, k].
  ActivationRows Quantize(const float* x, int64_t num_rows, int64_t k) const;
  Fp8RowsOut NewFp8Rows(int64_t num_rows, int64_t k) const;
  // FP8 or FP4 weights that take the same rows; y = R(W x).
  void Quantized(const ActivationRows& x, int64_t num_rows,
                 std::span<const LinearOutput> outputs) const;
  void Quantized(const ActivationRows& x, int64_t num_rows, const WeightMatrix& w, float* y) const;
  // bf16 weights; y = R(W x), or fp32 where rounding is kNone.
  void Bf16(const float* x, int64_t num_rows, const WeightMatrix& w, Rounding rounding,
            float* y) const;
  // out f32 [num_rows, dim] = wo_b · wo_a · o, o f32 [num_rows, heads·head_dim].
  void AttentionOutput(const AttentionWeights& w, const float* o, int64_t num_rows,
                       float* out) const;

 private:
  Operators* ops_;
  const ModelConfig& config_;
  Arithmetic arithmetic_;
  Workspace* workspace_;
};

}  // namespace deepinfer
