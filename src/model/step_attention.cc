// Window and compressed attention of a layer (model.md §6).

#include <algorithm>
#include <array>
#include <cmath>

#include "model/step_runner.h"

namespace deepinfer {

void StepRunner::RunAttention(int32_t layer, float* out) {
  const AttentionWeights& w = Weights(layer).block.attention;
  const int64_t t = num_rows_, d = config_.head_dim, heads = config_.num_heads;
  const float eps = config_.rms_eps;
  const RopeTable rope = Rope(layer);

  const ActivationRows input = linears_.Quantize(u_, t, config_.dim);
  float* qr = Floats(t * config_.q_lora_rank);
  float* kv = Floats(t * d);
  linears_.Quantized(input, t, std::array{LinearOutput{&w.wq_a, qr}, LinearOutput{&w.wkv, kv}});
  ops_->RmsNorm(t, qr, w.q_norm, config_.q_lora_rank, eps, stream(), qr);
  Probe("qr", layer, qr, t, config_.q_lora_rank);
  const ActivationRows query_input = linears_.Quantize(qr, t, config_.q_lora_rank);
  float* q = Floats(t * heads * d);
  const WeightMatrix& index_wq_b = Weights(layer).indexer.wq_b;
  const bool is_index_source = config_.IsIndexSource(layer);
  float* index_q = is_index_source ? Floats(t * index_wq_b.out_features) : nullptr;
  const std::array queries{LinearOutput{&w.wq_b, q}, LinearOutput{&index_wq_b, index_q}};
  linears_.Quantized(query_input, t, std::span(queries).first(is_index_source ? 2 : 1));
  ops_->Rope(t, q, config_.num_heads, config_.head_dim, positions_, rope, false, stream());
  Probe("q", layer, q, t, heads * d);

  ops_->RmsNorm(t, kv, w.kv_norm, d, eps, stream(), kv);
  ops_->Rope(t, kv, 1, config_.head_dim, positions_, rope, false, stream());
  std::byte* step_rows = context_.workspace->Bytes(t * context_.layout->window_row_bytes);
  ops_->StoreWindowRows(t, kv, d, context_.layout->format, step_rows);

  if (is_index_source) RunIndexer(layer, index_q);

  SetAttentionRows(layer, step_rows);
  const AttentionShape shape{context_.layout->format, config_.num_heads, config_.head_dim,
                             static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))),
                             context_.arithmetic.attention_weights};
  float* o = Floats(t * heads * d);
  ops_->Attention(attention_rows_, q, w.sink, shape, o);
  Probe("o_rot", layer, o, t, heads * d);
  // What wo_a quantises is the fp32 attention output.
  ops_->Rope(t, o, config_.num_heads, config_.head_dim, positions_, rope, true, Rounding::kNone);
  linears_.AttentionOutput(w, o, t, out);
  StoreRings(layer, step_rows);
}

void StepRunner::SetAttentionRows(int32_t layer, const std::byte* step_rows) {
  const KvLayout& layout = *context_.layout;
  const int32_t source = config_.KvSourceOf(layer);
  attention_rows_.clear();
  for (const RowRun& run : runs_) {
    const SequenceStep& s = *run.sequence;
    AttentionRow row;
    row.window.ring = layout.Ring(s.slot, layer);
    row.window.ring_rows = layout.ring_rows;
    row.window.step_start = run.start;
    row.window.row_bytes = layout.window_row_bytes;
    row.window.step_rows = step_rows + run.first_row * layout.window_row_bytes;
    const int32_t floor = in_decoder_ ? std::max(s.window_floor, s.decoder_origin) : s.window_floor;
    if (source >= 0) row.pages = layout.Pages(source, s.pool, s.block_table);
    for (int64_t i = 0; i < run.num_rows; ++i) {
      row.position = run.start + static_cast<int32_t>(i);
      row.window_lo = std::max({0, row.position - config_.window + 1, floor});
      if (source >= 0) {
        const Selection& selection = selections_[static_cast<size_t>(config_.IndexSourceOf(layer))];
        row.selected = selection.indices + (run.first_row + i) * selection.width;
        row.num_selected = selection.counts + run.first_row + i;
      }
      attention_rows_.push_back(row);
    }
  }
}

// After attention, since a longer step overwrites ring rows its own first rows still read.
void StepRunner::StoreRings(int32_t layer, const std::byte* step_rows) {
  const KvLayout& layout = *context_.layout;
  for (const RowRun& run : runs_) {
    const int64_t count = std::min<int64_t>(run.num_rows, layout.ring_rows);
    const int64_t skip = run.num_rows - count;
    ops_->WriteRing(count, step_rows + (run.first_row + skip) * layout.window_row_bytes,
                    layout.window_row_bytes, run.start + skip, layout.ring_rows,
                    layout.Ring(run.sequence->slot, layer));
  }
}

}  // namespace deepinfer
