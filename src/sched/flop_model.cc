#include "sched/flop_model.h"

#include <algorithm>
#include <limits>

namespace deepinfer {

namespace {
constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max() / 4;
}  // namespace

double VisibleEntries(int64_t x, int64_t ratio, int64_t cap) {
  const int64_t uncapped = cap >= kNoCap / ratio ? x : std::min(x, ratio * cap);
  const int64_t q = uncapped / ratio;
  const double full =
      static_cast<double>(ratio) * static_cast<double>(q) * static_cast<double>(q - 1) / 2.0;
  const double rest = static_cast<double>(q) * static_cast<double>(uncapped - ratio * q);
  return full + rest + static_cast<double>(x - uncapped) * static_cast<double>(cap);
}

FlopModel::FlopModel(CostShape shape, FormatCost format)
    : shape_(std::move(shape)), format_(format) {}

// What a KV source computes for every row, also for rows that skip its attention and FFN.
double FlopModel::PublicationRow(const CostShape::Layer& layer) const {
  if (!layer.kv_source) return 0.0;
  const CostShape& s = shape_;
  const auto latent = static_cast<double>(s.head_dim * s.dim);
  const double compress = layer.ratio == 2 ? 2 * latent * format_.fp32 : latent * format_.bf16;
  return compress + static_cast<double>(s.index_head_dim * s.head_dim) * format_.bf16;
}

double FlopModel::LayerRow(const CostShape::Layer& layer) const {
  const CostShape& s = shape_;
  const auto n = [](int64_t v) { return static_cast<double>(v); };
  const double attention =
      n(s.q_lora * s.dim + s.heads * s.head_dim * s.q_lora + s.head_dim * s.dim +
        s.o_lora * s.heads * s.head_dim + s.dim * s.o_groups * s.o_lora) *
      format_.fp8;
  const double moe = n(3 * s.dim * s.moe_inter * (s.experts_per_token + 1)) * format_.fp8;
  const double router = n(s.dim * s.num_experts) * format_.bf16;
  const double hc = 2 * n((2 + s.hc_mult) * s.hc_mult * s.hc_mult * s.dim) * format_.fp32;
  double sum = attention + moe + router + hc;
  if (layer.index_source) {
    sum += n(s.index_heads * s.index_head_dim * s.q_lora) * format_.fp8 +
           n(s.index_heads * s.dim) * format_.bf16;
  }
  if (layer.engram) sum += n((s.hc_mult + 1) * s.dim * s.engram_width) * format_.fp8;
  return sum;
}

double FlopModel::IndexScan(int32_t first, int32_t last, int64_t start, int64_t end) const {
  double entries = 0.0;
  for (int32_t l = first; l < last; ++l) {
    const CostShape::Layer& layer = shape_.layers[static_cast<size_t>(l)];
    if (!layer.index_source) continue;
    const int64_t cap = layer.index_cap > 0 ? layer.index_cap : kNoCap;
    entries += VisibleEntries(end, layer.ratio, cap) - VisibleEntries(start, layer.ratio, cap);
  }
  return entries;
}

double FlopModel::Layers(int32_t first, int32_t last, int64_t start, int64_t end) const {
  const double per_key = static_cast<double>(2 * shape_.heads * shape_.head_dim) * format_.bf16;
  const auto rows = static_cast<double>(end - start);
  double sum = IndexScan(first, last, start, end) *
               static_cast<double>(shape_.index_heads * shape_.index_head_dim) * format_.fp4;
  for (int32_t l = first; l < last; ++l) {
    const CostShape::Layer& layer = shape_.layers[static_cast<size_t>(l)];
    sum += rows * LayerRow(layer);
    double keys = VisibleEntries(end, 1, shape_.window) - VisibleEntries(start, 1, shape_.window);
    if (layer.ratio > 0) {
      keys += VisibleEntries(end, layer.ratio, shape_.index_topk) -
              VisibleEntries(start, layer.ratio, shape_.index_topk);
    }
    sum += per_key * keys;
  }
  return sum;
}

double FlopModel::PrefillRows(int64_t start, int64_t end, int64_t decoder_from) const {
  if (end <= start) return 0.0;
  const auto last = static_cast<int32_t>(shape_.layers.size());
  const int64_t kept = std::clamp(decoder_from, start, end);
  double sum = Layers(0, shape_.decoder_start, start, end);
  if (kept < end) sum += Layers(shape_.decoder_start, last, kept, end);
  for (const CostShape::Layer& layer : shape_.layers) {
    sum += static_cast<double>(end - start) * PublicationRow(layer);
  }
  return sum;
}

double FlopModel::DecodeRow(int64_t position) const {
  return PrefillRows(position, position + 1, position) +
         static_cast<double>(shape_.vocab * shape_.dim) * format_.bf16;
}

double FlopModel::IndexPairs(int64_t start, int64_t end, int64_t decoder_from) const {
  const auto last = static_cast<int32_t>(shape_.layers.size());
  const int64_t kept = std::clamp(decoder_from, start, end);
  return IndexScan(0, shape_.decoder_start, start, end) +
         IndexScan(shape_.decoder_start, last, kept, end);
}

}  // namespace deepinfer
