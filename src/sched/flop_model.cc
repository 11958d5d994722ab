#include "sched/flop_model.h"

#include <algorithm>
#include <limits>

namespace deepinfer {

namespace {
constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max() / 4;

double Double(int64_t v) { return static_cast<double>(v); }

// What a KV source computes for every row, also for rows that skip its attention and FFN.
double PublicationRow(const CostShape& s, const CostShape::Layer& layer, const FormatCost& format) {
  if (!layer.kv_source) return 0.0;
  const double latent = Double(s.head_dim * s.dim);
  const double compress = layer.ratio == 2 ? 2 * latent * format.fp32 : latent * format.bf16;
  return compress + Double(s.index_head_dim * s.head_dim) * format.bf16;
}

double LayerRow(const CostShape& s, const CostShape::Layer& layer, const FormatCost& format) {
  const double attention =
      Double(s.q_lora * s.dim + s.heads * s.head_dim * s.q_lora + s.head_dim * s.dim +
             s.o_lora * s.heads * s.head_dim + s.dim * s.o_groups * s.o_lora) *
      format.fp8;
  const double moe = Double(3 * s.dim * s.moe_inter * (s.experts_per_token + 1)) * format.fp8;
  const double router = Double(s.dim * s.num_experts) * format.bf16;
  const double hc = 2 * Double((2 + s.hc_mult) * s.hc_mult * s.hc_mult * s.dim) * format.fp32;
  double sum = attention + moe + router + hc;
  if (layer.index_source) {
    sum += Double(s.index_heads * s.index_head_dim * s.q_lora) * format.fp8 +
           Double(s.index_heads * s.dim) * format.bf16;
  }
  if (layer.engram) sum += Double((s.hc_mult + 1) * s.dim * s.engram_width) * format.fp8;
  return sum;
}

}  // namespace

double VisibleEntries(int64_t x, int64_t ratio, int64_t cap) {
  const int64_t uncapped = cap >= kNoCap / ratio ? x : std::min(x, ratio * cap);
  const int64_t q = uncapped / ratio;
  const double full =
      static_cast<double>(ratio) * static_cast<double>(q) * static_cast<double>(q - 1) / 2.0;
  const double rest = static_cast<double>(q) * static_cast<double>(uncapped - ratio * q);
  return full + rest + static_cast<double>(x - uncapped) * static_cast<double>(cap);
}

FlopModel::FlopModel(const CostShape& shape, FormatCost format)
    : logits_(Double(shape.vocab * shape.dim) * format.bf16),
      per_key_(Double(2 * shape.heads * shape.head_dim) * format.bf16),
      per_scan_(Double(shape.index_heads * shape.index_head_dim) * format.fp4) {
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const CostShape::Layer& layer = shape.layers[i];
    Half& half = static_cast<int32_t>(i) < shape.decoder_start ? encoder_ : decoder_;
    half.row += LayerRow(shape, layer, format);
    publication_ += PublicationRow(shape, layer, format);
    Add(1, shape.window, &half.keys);
    if (layer.ratio > 0) Add(layer.ratio, shape.index_topk, &half.keys);
    if (!layer.index_source) continue;
    Add(layer.ratio, layer.index_cap > 0 ? layer.index_cap : kNoCap, &half.scans);
  }
}

void FlopModel::Add(int64_t ratio, int64_t cap, std::vector<Keys>* keys) {
  for (Keys& k : *keys) {
    if (k.ratio != ratio || k.cap != cap) continue;
    ++k.num_layers;
    return;
  }
  keys->push_back({ratio, cap, 1});
}

double FlopModel::Visible(const std::vector<Keys>& keys, int64_t start, int64_t end) {
  double sum = 0.0;
  for (const Keys& k : keys) {
    sum += k.num_layers *
           (VisibleEntries(end, k.ratio, k.cap) - VisibleEntries(start, k.ratio, k.cap));
  }
  return sum;
}

double FlopModel::Attention(const Half& half, int64_t start, int64_t end) const {
  return per_key_ * Visible(half.keys, start, end) + per_scan_ * Visible(half.scans, start, end);
}

double FlopModel::AttentionOfPrefillRows(int64_t start, int64_t end, int64_t decoder_from) const {
  if (end <= start) return 0.0;
  const int64_t kept = std::clamp(decoder_from, start, end);
  return Attention(encoder_, start, end) + Attention(decoder_, kept, end);
}

double FlopModel::PrefillRows(int64_t start, int64_t end, int64_t decoder_from) const {
  if (end <= start) return 0.0;
  const int64_t kept = std::clamp(decoder_from, start, end);
  return Double(end - start) * (encoder_.row + publication_) + Double(end - kept) * decoder_.row +
         AttentionOfPrefillRows(start, end, decoder_from);
}

double FlopModel::AttentionOfDecodeRow(int64_t position) const {
  return AttentionOfPrefillRows(position, position + 1, position);
}

double FlopModel::DecodeRow(int64_t position) const {
  return PrefillRows(position, position + 1, position) + logits_;
}

double FlopModel::IndexPairs(int64_t start, int64_t end, int64_t decoder_from) const {
  const int64_t kept = std::clamp(decoder_from, start, end);
  return Visible(encoder_.scans, start, end) + Visible(decoder_.scans, kept, end);
}

}  // namespace deepinfer
