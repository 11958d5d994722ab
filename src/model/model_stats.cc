#include "model/model_stats.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/kv_view.h"

namespace deepinfer {

namespace {

enum Part {
  kEmbedding,
  kAttention,
  kIndexer,
  kHyperConnections,
  kRouter,
  kRoutedExperts,
  kSharedExperts,
  kEngramTables,
  kEngramProjections,
  kNorms,
  kHead,
  kDraft,
  kVision,
  kNumParts,
};

constexpr std::string_view kPartNames[kNumParts] = {"embedding",
                                                    "attention",
                                                    "compressor, indexer",
                                                    "hyper-connections",
                                                    "router",
                                                    "routed experts",
                                                    "shared experts",
                                                    "Engram tables",
                                                    "Engram project.",
                                                    "norms",
                                                    "head",
                                                    "draft layers",
                                                    "vision"};

Part PartOf(std::string_view name) {
  const auto has = [name](std::string_view piece) {
    return name.find(piece) != std::string_view::npos;
  };
  if (name.starts_with("mtp.")) return kDraft;
  if (name.starts_with("vision.") || name.starts_with("aligner.") || name.starts_with("image_")) {
    return kVision;
  }
  if (name.starts_with("embed.")) return kEmbedding;
  if (name.starts_with("head.")) return kHead;
  if (has(".engram.embed.")) return kEngramTables;
  if (has(".engram.")) return kEngramProjections;
  if (has(".ffn.experts.")) return kRoutedExperts;
  if (has(".ffn.shared_experts.")) return kSharedExperts;
  if (has(".ffn.gate.")) return kRouter;
  if (has(".hc_")) return kHyperConnections;
  if (has(".compressor.") || has(".indexer.")) return kIndexer;
  return has(".attn.") ? kAttention : kNorms;
}

// Parameters of a stored tensor; packed FP4 holds two in a byte.
int64_t ParametersOf(std::string_view name, const TensorView& view) {
  if (name.ends_with(".scale")) return 0;
  const bool packed =
      (view.dtype == DType::kI8 || view.dtype == DType::kU8) && name.ends_with(".weight");
  return static_cast<int64_t>(view.num_elements()) * (packed ? 2 : 1);
}

}  // namespace

std::vector<PartStats> CountParts(const Checkpoint& checkpoint) {
  std::vector<PartStats> parts(kNumParts + 1);
  for (size_t p = 0; p < kNumParts; ++p) parts[p].name = kPartNames[p];
  parts[kNumParts].name = "total";
  for (size_t i = 0; i < checkpoint.num_tensors(); ++i) {
    const TensorView& view = checkpoint.view(i);
    for (size_t p : {static_cast<size_t>(PartOf(checkpoint.name(i))), size_t{kNumParts}}) {
      ++parts[p].num_tensors;
      parts[p].parameters += ParametersOf(checkpoint.name(i), view);
      parts[p].bytes += static_cast<int64_t>(view.size_bytes);
    }
  }
  std::erase_if(parts, [](const PartStats& p) { return p.num_tensors == 0; });
  return parts;
}

RowFlops FlopsPerRow(const ModelConfig& c, int64_t n) {
  const double dim = static_cast<double>(c.dim), q_lora = static_cast<double>(c.q_lora_rank);
  const double inter = static_cast<double>(c.moe_inter_dim);
  const double q_width = static_cast<double>(c.num_heads) * c.head_dim;
  const double groups = static_cast<double>(c.o_groups) * static_cast<double>(c.o_lora_rank);
  const double mixes = (2.0 + c.hc_mult) * c.hc_mult;
  const double attention = 2 * (q_lora * dim + q_width * q_lora + c.head_dim * dim +
                                groups * q_width / c.o_groups + dim * groups);
  const double hyper = 2 * 2 * mixes * c.hc_mult * dim;
  const double router = 2.0 * c.num_experts * dim;
  const double moe = 2 * 3 * inter * dim * (c.experts_per_token + 1);
  const double core = 4 * q_width;                                       // per key
  const double scan = 2.0 * c.index_num_heads * (c.index_head_dim + 1);  // per scored entry
  const double index_query = 2.0 * c.index_num_heads * (c.index_head_dim * q_lora + dim);
  const double engram = 2 * (c.hc_mult + 1) * dim * c.engram.num_columns() * c.engram.head_dim;
  const double candidates = static_cast<double>(c.candidate_topk_blocks) * c.candidate_block_size;

  RowFlops f;
  f.head = 2.0 * c.vocab_size * dim;
  const int32_t cut = c.decoder_start();
  for (int32_t l = 0; l < c.num_layers; ++l) {
    double& side = l < cut ? f.encoder : f.decoder;
    side += attention + hyper + router + moe +
            core * static_cast<double>(std::min<int64_t>(n, c.window));
    if (c.EngramIndex(l) >= 0) side += engram;
    if (c.ratio(l) == 0) continue;
    const double entries = static_cast<double>(n) / c.ratio(l);
    side += core * std::min<double>(c.index_topk, entries);
    if (c.IsIndexSource(l)) {
      const bool restricted = l > c.candidate_source_layer;
      side += index_query + scan * (restricted ? std::min(entries, candidates) : entries);
    }
    if (c.IsKvSource(l)) {
      // Published by every row, on the encoder's side of the account.
      f.encoder +=
          2.0 * c.ratio(l) * c.head_dim * dim + 2.0 * c.index_head_dim * c.head_dim / c.ratio(l);
    }
  }
  return f;
}

namespace {

double WeightBytesPerStep(const ModelConfig& config, const Checkpoint& checkpoint, double rows) {
  const double experts = config.num_experts;
  const double chosen = experts * (1 - std::pow(1 - config.experts_per_token / experts, rows));
  double bytes = 0;
  for (const PartStats& part : CountParts(checkpoint)) {
    const double size = static_cast<double>(part.bytes);
    if (part.name == "total" || part.name == kPartNames[kDraft] ||
        part.name == kPartNames[kVision]) {
      continue;
    }
    if (part.name == kPartNames[kRoutedExperts]) {
      bytes += size * chosen / experts;
    } else if (part.name == kPartNames[kEmbedding]) {
      bytes += size / config.vocab_size * rows;
    } else if (part.name == kPartNames[kEngramTables]) {
      double table_rows = 0;
      for (int64_t r : config.engram.num_embeddings) table_rows += static_cast<double>(r);
      const auto layers = static_cast<double>(config.engram.layer_ids.size());
      bytes += size / table_rows * layers * config.engram.num_columns() * rows;
    } else {
      bytes += size;
    }
  }
  return bytes;
}

// Cached bytes of one row, in the stored form of every row kind.
double KvBytesPerRow(const ModelConfig& c, int64_t n) {
  constexpr KvFormat kFormat = KvFormat::kQuantized;
  const auto window_row = static_cast<double>(WindowRowBytes(kFormat, c.head_dim));
  const auto entry = static_cast<double>(CompressedRowBytes(kFormat, c.head_dim));
  const auto index_key = static_cast<double>(IndexCodeBytes(kFormat, c.index_head_dim) +
                                             IndexScaleBytes(kFormat, c.index_head_dim));
  const double candidates = static_cast<double>(c.candidate_topk_blocks) * c.candidate_block_size;
  double bytes = 0;
  for (int32_t l = 0; l < c.num_layers; ++l) {
    bytes += window_row * static_cast<double>(std::min<int64_t>(n, c.window));
    if (c.ratio(l) == 0) continue;
    const double entries = static_cast<double>(n) / c.ratio(l);
    bytes += entry * std::min<double>(c.index_topk, entries);
    if (!c.IsIndexSource(l)) continue;
    const bool restricted = l > c.candidate_source_layer;
    bytes += index_key * (restricted ? std::min(entries, candidates) : entries);
  }
  return bytes;
}

}  // namespace

StepBytes BytesPerDecodeStep(const ModelConfig& config, const Checkpoint& checkpoint,
                             int32_t num_rows, int64_t n) {
  return {WeightBytesPerStep(config, checkpoint, num_rows), num_rows * KvBytesPerRow(config, n)};
}

double WeightBytesPerDecodedToken(const ModelConfig& config, const Checkpoint& checkpoint) {
  return WeightBytesPerStep(config, checkpoint, 1);
}

}  // namespace deepinfer
