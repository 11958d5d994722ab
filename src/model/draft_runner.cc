#include "model/draft_runner.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace deepinfer {

DraftRunner::DraftRunner(const StepContext& context)
    : context_(context),
      ops_(context.ops),
      config_(*context.config),
      linears_(context.ops, context.config, context.arithmetic, context.workspace) {}

HcShape DraftRunner::Hc() const {
  return {config_.hc_mult, config_.dim, config_.hc_sinkhorn_iters, config_.hc_eps, config_.rms_eps};
}

int32_t* DraftRunner::DevicePositions(const std::vector<int32_t>& positions) {
  const auto count = static_cast<int64_t>(positions.size());
  auto* device = context_.workspace->Array<int32_t>(count);
  ops_->CopyToDevice(device, positions.data(), count * 4);
  return device;
}

std::byte* DraftRunner::WindowRowsOf(int32_t layer, float* kv, int64_t num_rows,
                                     const int32_t* positions) {
  const AttentionWeights& w = Weights(layer).attention;
  const int64_t d = config_.head_dim;
  ops_->RmsNorm(num_rows, kv, w.kv_norm, d, config_.rms_eps, stream(), kv);
  ops_->Rope(num_rows, kv, 1, config_.head_dim, positions, context_.rope->plain(), false, stream());
  std::byte* rows = context_.workspace->Bytes(num_rows * context_.layout->window_row_bytes);
  ops_->StoreWindowRows(num_rows, kv, d, context_.layout->format, rows);
  return rows;
}

void DraftRunner::Inject(std::span<const DraftContext> contexts) {
  const KvLayout& layout = *context_.layout;
  const auto width = static_cast<int64_t>(config_.dspark.target_layer_ids.size()) * config_.dim;
  // Only the last rows of a long run survive in a ring.
  std::vector<DraftContext> kept(contexts.begin(), contexts.end());
  std::vector<int32_t> positions;
  for (DraftContext& c : kept) {
    const int32_t skip = std::max(0, c.num_rows - layout.ring_rows);
    c.main_hidden += skip * width;
    c.start += skip;
    c.num_rows -= skip;
    for (int32_t i = 0; i < c.num_rows; ++i) positions.push_back(c.start + i);
  }
  const auto num_rows = static_cast<int64_t>(positions.size());
  if (num_rows == 0) return;
  const int32_t* device_positions = DevicePositions(positions);
  float* hidden = Floats(num_rows * width);
  int64_t row = 0;
  for (const DraftContext& c : kept) {
    ops_->CopyToDevice(hidden + row * width, c.main_hidden, c.num_rows * width * 4);
    row += c.num_rows;
  }
  const DsparkWeights& w = context_.weights->dspark;
  float* x = Floats(num_rows * config_.dim);
  linears_.Quantized(linears_.Quantize(hidden, num_rows, width), num_rows, w.main_proj, x);
  ops_->RmsNorm(num_rows, x, w.main_norm, config_.dim, config_.rms_eps, stream(), x);
  const ActivationRows input = linears_.Quantize(x, num_rows, config_.dim);
  std::vector<LinearOutput> keys;  // of every layer, which all see the same rows
  for (int32_t layer = 0; layer < config_.dspark.num_layers; ++layer) {
    keys.push_back({&Weights(layer).attention.wkv, Floats(num_rows * config_.head_dim)});
  }
  linears_.Quantized(input, num_rows, keys);
  for (int32_t layer = 0; layer < config_.dspark.num_layers; ++layer) {
    const Workspace::Scope scope(context_.workspace);
    float* kv = keys[static_cast<size_t>(layer)].y;
    const std::byte* rows = WindowRowsOf(layer, kv, num_rows, device_positions);
    for (const DraftContext& c : kept) {
      ops_->WriteRing(c.num_rows, rows, layout.window_row_bytes, c.start, layout.ring_rows,
                      Ring(c.slot, layer));
      rows += c.num_rows * layout.window_row_bytes;
    }
  }
}

void DraftRunner::Embed(std::span<const DraftSequence> sequences) {
  std::vector<int32_t> ids, positions;
  for (const DraftSequence& s : sequences) {
    for (int32_t k = 0; k < config_.dspark.block_size; ++k) {
      ids.push_back(k == 0 ? s.anchor : config_.dspark.noise_token_id);
      positions.push_back(s.position + k);
    }
  }
  const int64_t n = config_.hc_mult;
  num_rows_ = static_cast<int64_t>(ids.size());
  positions_ = DevicePositions(positions);
  const int32_t* device_ids = DevicePositions(ids);
  const std::vector<uint8_t> text(ids.size(), 0);
  is_image_ = context_.workspace->Array<uint8_t>(num_rows_);
  ops_->CopyToDevice(is_image_, text.data(), num_rows_);
  float* x = Floats(num_rows_ * config_.dim);
  ops_->Embed(num_rows_, device_ids, context_.weights->embed, config_.dim, x);
  h_ = Floats(num_rows_ * n * config_.dim);
  h_next_ = Floats(num_rows_ * n * config_.dim);
  ops_->Replicate(num_rows_, x, config_.hc_mult, config_.dim, h_);
  // As in the backbone, the first site reads copy 0 alone.
  std::vector<float> one_hot(static_cast<size_t>(num_rows_ * n), 0.0f);
  for (int64_t t = 0; t < num_rows_; ++t) one_hot[static_cast<size_t>(t * n)] = 1.0f;
  pre_ = Floats(num_rows_ * n);
  ops_->CopyToDevice(pre_, one_hot.data(), num_rows_ * n * 4);
}

float* DraftRunner::LeadingRows(const float* x, int64_t num_sequences, int64_t num_drafts) {
  const int64_t dim = config_.dim, block = config_.dspark.block_size;
  float* rows = Floats(num_sequences * num_drafts * dim);
  for (int64_t s = 0; s < num_sequences; ++s) {
    ops_->CopyOnDevice(rows + s * num_drafts * dim, x + s * block * dim, num_drafts * dim * 4);
  }
  return rows;
}

void DraftRunner::Run(std::span<const DraftSequence> sequences, int32_t num_drafts,
                      DraftRows* out) {
  out->num_drafts = num_drafts;
  out->status.clear();
  Embed(sequences);
  for (int32_t layer = 0; layer < config_.dspark.num_layers; ++layer) RunLayer(layer, sequences);

  const int64_t dim = config_.dim, vocab = config_.vocab_size;
  float* mixed = Floats(num_rows_ * dim);
  ops_->HcPre(num_rows_, h_, pre_, Hc(), stream(), mixed);
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  const int64_t num_rows = num_sequences * num_drafts;
  const float* g = LeadingRows(mixed, num_sequences, num_drafts);
  float* y = Floats(num_rows * dim);
  ops_->RmsNorm(num_rows, g, context_.weights->dspark.norm, dim, config_.rms_eps, stream(), y);
  float* logits = Floats(num_rows * vocab);
  linears_.Bf16(y, num_rows, context_.weights->head, Rounding::kNone, logits);
  for (int64_t s = 0; s < num_sequences; ++s) {
    const bool finite = ops_->AllFinite(num_drafts * vocab, logits + s * num_drafts * vocab);
    out->status.push_back(
        finite ? OkStatus() : DataCorruption("logits of the draft model became NaN or infinite"));
  }
  out->hidden.resize(static_cast<size_t>(num_rows * dim));
  ops_->CopyToHost(out->hidden.data(), g, num_rows * dim * 4);
  out->logits.resize(static_cast<size_t>(num_rows * vocab));
  ops_->CopyToHost(out->logits.data(), logits, num_rows * vocab * 4);
}

void DraftRunner::RunLayer(int32_t layer, std::span<const DraftSequence> sequences) {
  const BlockWeights& w = Weights(layer);
  const HcShape hc = Hc();
  const int64_t t = num_rows_, n = hc.num_copies, dim = hc.dim;
  const Workspace::Scope scope(context_.workspace);
  float* u = Floats(t * dim);
  float* pre = Floats(t * n);
  float* post = Floats(t * n);
  float* comb = Floats(t * n * n);
  float* o = Floats(t * dim);
  ops_->HcPre(t, h_, pre_, hc, stream(), u);
  ops_->RmsNorm(t, u, w.attn_norm, dim, config_.rms_eps, stream(), u);
  ops_->HcMixes(t, h_, w.hc_attn, hc, pre, post, comb);
  RunAttention(layer, sequences, u, o);
  ops_->HcPost(t, o, h_, post, comb, hc, stream(), h_next_);

  ops_->HcPre(t, h_next_, pre, hc, stream(), u);
  ops_->RmsNorm(t, u, w.ffn_norm, dim, config_.rms_eps, stream(), u);
  ops_->HcMixes(t, h_next_, w.hc_ffn, hc, pre_, post, comb);
  RunMoe(layer, u, o);
  ops_->HcPost(t, o, h_next_, post, comb, hc, stream(), h_);
}

void DraftRunner::RunAttention(int32_t layer, std::span<const DraftSequence> sequences,
                               const float* u, float* out) {
  const AttentionWeights& w = Weights(layer).attention;
  const KvLayout& layout = *context_.layout;
  const int64_t t = num_rows_, d = config_.head_dim, heads = config_.num_heads;
  const RopeTable rope = context_.rope->plain();

  const ActivationRows input = linears_.Quantize(u, t, config_.dim);
  float* qr = Floats(t * config_.q_lora_rank);
  float* kv = Floats(t * d);
  linears_.Quantized(input, t, std::array{LinearOutput{&w.wq_a, qr}, LinearOutput{&w.wkv, kv}});
  ops_->RmsNorm(t, qr, w.q_norm, config_.q_lora_rank, config_.rms_eps, stream(), qr);
  float* q = Floats(t * heads * d);
  linears_.Quantized(linears_.Quantize(qr, t, config_.q_lora_rank), t, w.wq_b, q);
  ops_->Rope(t, q, config_.num_heads, config_.head_dim, positions_, rope, false, stream());
  const std::byte* block_rows = WindowRowsOf(layer, kv, t, positions_);

  // Every row sees the same keys: the window before the anchor, which does not slide, and the
  // whole block in both directions. Its position only bounds the keys here.
  std::vector<AttentionRow> rows;
  for (const DraftSequence& s : sequences) {
    AttentionRow row;
    row.window.ring = Ring(s.slot, layer);
    row.window.ring_rows = layout.ring_rows;
    row.window.step_start = s.position;
    row.window.row_bytes = layout.window_row_bytes;
    row.window.step_rows = block_rows;
    row.position = s.position + config_.dspark.block_size - 1;
    row.window_lo = std::max({0, s.position - config_.window, s.ring_from});
    rows.insert(rows.end(), static_cast<size_t>(config_.dspark.block_size), row);
    block_rows += config_.dspark.block_size * layout.window_row_bytes;
  }
  const AttentionShape shape{layout.format, config_.num_heads, config_.head_dim,
                             static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))),
                             context_.arithmetic.attention_weights};
  float* o = Floats(t * heads * d);
  ops_->Attention(rows, q, w.sink, shape, o);
  // What wo_a quantises is the fp32 attention output.
  ops_->Rope(t, o, config_.num_heads, config_.head_dim, positions_, rope, true, Rounding::kNone);
  linears_.AttentionOutput(w, o, t, out);
}

void DraftRunner::RunMoe(int32_t layer, const float* u, float* out) {
  const MoeWeights& w = Weights(layer).moe;
  const int64_t t = num_rows_;
  const MoeShape shape{config_.dim,
                       config_.moe_inter_dim,
                       config_.dspark.num_experts,
                       config_.dspark.experts_per_token,
                       config_.swiglu_limit,
                       stream()};
  float* logits = Floats(t * shape.num_experts);
  linears_.Bf16(u, t, w.gate, Rounding::kNone, logits);
  int32_t* experts = context_.workspace->Array<int32_t>(t * shape.topk);
  float* weights = Floats(t * shape.topk);
  ops_->Route(t, logits, w.bias, w.bias_image, is_image_, shape.num_experts, shape.topk,
              config_.gate_temp, config_.route_scale, experts, weights);
  const ActivationRows x = linears_.Quantize(u, t, config_.dim);
  ops_->MoeFfn(t, x.x, x.fp8, w.experts, w.shared, experts, weights, shape, out);
}

void DraftRunner::Propose(const DraftRows& rows, int32_t k, std::span<const int32_t> previous,
                          DraftMarkovRows* markov, DraftProposal* out) {
  const auto count = static_cast<int64_t>(previous.size());
  const int64_t dim = config_.dim, vocab = config_.vocab_size, rank = config_.dspark.markov_rank;
  const DsparkWeights& w = context_.weights->dspark;
  const int32_t* ids = DevicePositions({previous.begin(), previous.end()});
  float* embedding = Floats(count * rank);
  ops_->Embed(count, ids, w.markov_embed, rank, embedding);

  float* features = Floats(count * (dim + rank));
  for (int64_t s = 0; s < count; ++s) {
    float* row = features + s * (dim + rank);
    ops_->CopyToDevice(row, rows.hidden.data() + (s * rows.num_drafts + k) * dim, dim * 4);
    ops_->CopyOnDevice(row + dim, embedding + s * rank, rank * 4);
  }
  float* confidence = Floats(count);
  linears_.Bf16(features, count, w.confidence, Rounding::kNone, confidence);
  out->confidence.resize(static_cast<size_t>(count));
  ops_->CopyToHost(out->confidence.data(), confidence, count * 4);

  out->logits.resize(static_cast<size_t>(count * vocab));
  ForEachMarkovRow(previous, embedding, markov, [&](size_t sequence, const float* bias) {
    const auto s = static_cast<int64_t>(sequence);
    const float* unbiased = rows.logits.data() + (s * rows.num_drafts + k) * vocab;
    float* row = out->logits.data() + s * vocab;
    for (int64_t i = 0; i < vocab; ++i) row[i] = unbiased[i] + bias[i];
  });
}

template <typename Use>
void DraftRunner::ForEachMarkovRow(std::span<const int32_t> previous, const float* embedding,
                                   DraftMarkovRows* markov, const Use& use) {
  const int64_t vocab = config_.vocab_size, rank = config_.dspark.markov_rank;
  std::vector<size_t> missing;
  for (size_t s = 0; s < previous.size(); ++s) {
    if (const float* row = markov->Find(previous[s]); row != nullptr) {
      use(s, row);
    } else {
      missing.push_back(s);
    }
  }
  if (missing.empty()) return;
  const auto num_missing = static_cast<int64_t>(missing.size());
  float* inputs = Floats(num_missing * rank);
  for (int64_t i = 0; i < num_missing; ++i) {
    const auto s = static_cast<int64_t>(missing[static_cast<size_t>(i)]);
    ops_->CopyOnDevice(inputs + i * rank, embedding + s * rank, rank * 4);
  }
  float* computed = Floats(num_missing * vocab);
  linears_.Bf16(inputs, num_missing, context_.weights->dspark.markov_head, Rounding::kNone,
                computed);
  for (int64_t i = 0; i < num_missing; ++i) {
    const size_t s = missing[static_cast<size_t>(i)];
    const float* row = markov->Find(previous[s]);
    // Two sequences may miss the same token.
    if (row == nullptr) {
      float* fresh = markov->Add(previous[s]);
      ops_->CopyToHost(fresh, computed + i * vocab, vocab * 4);
      row = fresh;
    }
    use(s, row);
  }
}

}  // namespace deepinfer
