// Mixture of experts and Engram of a layer (model.md §9, §10).

#include "model/step_runner.h"

namespace deepinfer {

void StepRunner::RunMoe(int32_t layer, float* out) {
  const MoeWeights& w = Weights(layer).block.moe;
  const int64_t t = num_rows_;
  const MoeShape shape{config_.dim,          config_.moe_inter_dim,
                       config_.num_experts,  config_.experts_per_token,
                       config_.swiglu_limit, stream()};
  float* logits = Floats(t * shape.num_experts);
  linears_.Bf16(u_, t, w.gate, Rounding::kNone, logits);
  CheckFinite(logits, shape.num_experts, "router logits");
  int32_t* experts = context_.workspace->Array<int32_t>(t * shape.topk);
  float* weights = Floats(t * shape.topk);
  ops_->Route(t, logits, w.bias, w.bias_image, is_image_, shape.num_experts, shape.topk,
              config_.gate_temp, config_.route_scale, experts, weights);
  CountExpertRows(layer, experts);
  Probe("gate_w", layer, weights, t, shape.topk);
  ProbeSelection("gate_i", layer, experts, nullptr, t, shape.topk);
  const ActivationRows x = linears_.Quantize(u_, t, config_.dim);
  ops_->MoeFfn(t, x.x, x.fp8, w.experts, w.shared, experts, weights, shape, out);
}

void StepRunner::CountExpertRows(int32_t layer, const int32_t* experts) {
  experts_.resize(static_cast<size_t>(num_rows_ * config_.experts_per_token));
  ops_->CopyToHost(experts_.data(), experts, static_cast<int64_t>(experts_.size()) * 4);
  int32_t* rows = expert_rows_ + int64_t{layer} * config_.num_experts;
  for (int32_t expert : experts_) ++rows[expert];
}

void StepRunner::RunEngram(int32_t layer) {
  const int32_t index = config_.EngramIndex(layer);
  if (index < 0) return;
  const Workspace::Scope scope(context_.workspace);
  const EngramWeights& w = Weights(layer).engram;
  const int64_t columns = context_.hasher->num_columns();
  std::vector<int64_t> host_ids(static_cast<size_t>(num_rows_ * columns));
  for (const RowRun& run : runs_) {
    context_.hasher->RowIds(index, run.sequence->tokens, run.sequence->is_image, run.start,
                            run.num_rows, host_ids.data() + run.first_row * columns);
  }
  int64_t* ids = context_.workspace->Array<int64_t>(num_rows_ * columns);
  ops_->CopyToDevice(ids, host_ids.data(), num_rows_ * columns * 8);
  float* kvv = Floats(num_rows_ * (config_.hc_mult + 1) * config_.dim);
  linears_.Quantized(EngramRows(w, ids), num_rows_, w.wkv, kvv);
  ops_->EngramGate(num_rows_, h_, kvv, w.q_weight, w.k_weight, is_image_, Hc(), stream());
  Probe("engram_out", layer, h_, num_rows_, config_.hc_mult * config_.dim);
}

ActivationRows StepRunner::EngramRows(const EngramWeights& w, const int64_t* ids) {
  const int32_t columns = static_cast<int32_t>(context_.hasher->num_columns());
  const int64_t width = columns * config_.engram.head_dim;
  if (context_.arithmetic.engram_stored_rows && w.table.format == WeightFormat::kFp8Group32) {
    const Fp8RowsOut rows = linears_.NewFp8Rows(num_rows_, width);
    ops_->EngramGatherFp8(num_rows_, ids, columns, w.table, rows);
    return {nullptr, rows};
  }
  // Rows of a dequantised table lie on the FP8 grid, so quantising them changes no value.
  float* rows = Floats(num_rows_ * width);
  ops_->EngramGather(num_rows_, ids, columns, w.table, rows);
  return linears_.Quantize(rows, num_rows_, width);
}

}  // namespace deepinfer
