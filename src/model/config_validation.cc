// The rules between configuration fields (model.md §2).

#include <algorithm>
#include <string>

#include "model/config.h"

namespace deepinfer {

namespace {

Status Fail(const std::string& what) { return DataCorruption("config: " + what); }

bool StrictlyAscending(const std::vector<int32_t>& v) {
  return std::adjacent_find(v.begin(), v.end(), std::greater_equal<>()) == v.end();
}

Status CheckMultiple(std::string_view key, int64_t value, int64_t unit) {
  if (value % unit == 0) return OkStatus();
  return Fail(std::string(key) + " = " + std::to_string(value) + " must be a multiple of " +
              std::to_string(unit));
}

Status CheckDimensions(const ModelConfig& c) {
  DI_RETURN_IF_ERROR(CheckMultiple("hidden_size", c.dim, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("q_lora_rank", c.q_lora_rank, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("o_groups * o_lora_rank", c.o_groups * c.o_lora_rank, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("moe_intermediate_size", c.moe_inter_dim, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("head_dim", c.head_dim, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("index_head_dim", c.index_head_dim, 32));
  DI_RETURN_IF_ERROR(CheckMultiple("qk_rope_head_dim", c.rope_dim, 2));
  if (c.rope_dim > c.head_dim || c.rope_dim > c.index_head_dim) {
    return Fail("qk_rope_head_dim = " + std::to_string(c.rope_dim) +
                " exceeds head_dim or index_head_dim");
  }
  if (c.num_heads % c.o_groups != 0) {
    return Fail("num_attention_heads = " + std::to_string(c.num_heads) +
                " must be a multiple of o_groups = " + std::to_string(c.o_groups));
  }
  if (c.experts_per_token > c.num_experts) {
    return Fail("num_experts_per_tok = " + std::to_string(c.experts_per_token) +
                " exceeds n_routed_experts = " + std::to_string(c.num_experts));
  }
  return OkStatus();
}

// Ratios and sources of every layer with compressed keys.
Status CheckLayerRoles(const ModelConfig& c) {
  for (int32_t l = 0; l < c.num_layers; ++l) {
    if (c.ratio(l) == 0) continue;
    const std::string where = "layer " + std::to_string(l);
    const int32_t kv = c.KvSourceOf(l), index = c.IndexSourceOf(l);
    if (kv < 0) return Fail(where + " has a compress ratio but no kv source at or before it");
    if (index < 0) return Fail(where + " has a compress ratio but no index source at or before it");
    const int32_t kv_layer = c.kv_source_layers[static_cast<size_t>(kv)];
    const int32_t index_layer = c.index_source_layers[static_cast<size_t>(index)];
    if (index_layer < kv_layer || c.KvSourceOf(index_layer) != kv) {
      return Fail(where + " uses kv source " + std::to_string(kv_layer) +
                  " but the top-k list of layer " + std::to_string(index_layer));
    }
    if (c.ratio(l) != c.ratio(kv_layer)) {
      return Fail("compress_ratios of " + where + " and of its kv source " +
                  std::to_string(kv_layer) + " differ");
    }
  }
  return OkStatus();
}

Status CheckSources(const ModelConfig& c) {
  const auto in_backbone = [&](const std::vector<int32_t>& v) {
    return std::all_of(v.begin(), v.end(),
                       [&](int32_t l) { return l < c.num_layers && c.ratio(l) > 0; });
  };
  if (c.kv_source_layers.empty() || !StrictlyAscending(c.kv_source_layers) ||
      !in_backbone(c.kv_source_layers)) {
    return Fail("kv_source_layer_ids must be ascending backbone layers with a compress ratio");
  }
  if (!StrictlyAscending(c.index_source_layers) || !in_backbone(c.index_source_layers)) {
    return Fail("index_source_layer_ids must be ascending backbone layers with a compress ratio");
  }
  DI_RETURN_IF_ERROR(CheckLayerRoles(c));
  const int32_t candidate = c.candidate_source_layer;
  if (candidate != c.kv_source_layers.back() || c.ratio(candidate) != 1 ||
      !c.IsIndexSource(candidate)) {
    return Fail("candidate_source_layer_id = " + std::to_string(candidate) +
                " must be the last kv source, an index source, and have ratio 1");
  }
  const int32_t cut = c.decoder_start();
  if (!c.IsKvSource(cut)) return Fail("the first ratio-1 layer must be a kv source");
  // Prompt rows that are not kept end at the cut, so a later source would lack their entries.
  if (c.kv_source_layers.back() != cut) {
    return Fail("kv_source_layer_ids: layer " + std::to_string(c.kv_source_layers.back()) +
                " lies after layer " + std::to_string(cut) +
                ", which is the decoder's only source of compressed keys");
  }
  for (int32_t l = cut; l < c.num_layers; ++l) {
    if (c.ratio(l) != 1) return Fail("layer " + std::to_string(l) + " after the cut needs ratio 1");
  }
  return OkStatus();
}

Status CheckEngram(const ModelConfig& c) {
  const EngramConfig& e = c.engram;
  if (e.layer_ids.empty()) return OkStatus();
  if (!StrictlyAscending(e.layer_ids)) return Fail("engram_layer_ids must ascend");
  if (e.num_embeddings.size() != e.layer_ids.size()) {
    return Fail("engram_num_embeddings needs one entry per engram_layer_ids");
  }
  if (e.layer_ids.back() >= c.decoder_start()) {
    return Fail("engram layer " + std::to_string(e.layer_ids.back()) +
                " must lie before the first ratio-1 layer");
  }
  if (e.pad_token_id >= c.vocab_size) return Fail("engram_pad_token_id exceeds vocab_size");
  return CheckMultiple("engram_head_dim", e.head_dim, 32);
}

Status CheckDspark(const ModelConfig& c) {
  const DsparkConfig& d = c.dspark;
  if (d.num_layers == 0) return OkStatus();
  const int32_t cut = c.decoder_start();
  const auto& t = d.target_layer_ids;
  if (t.empty() || !std::all_of(t.begin(), t.end(), [&](int32_t l) { return l < c.num_layers; })) {
    return Fail("dspark_target_layer_ids must name backbone layers");
  }
  const bool all_decoder = std::all_of(t.begin(), t.end(), [&](int32_t l) { return l >= cut; });
  const bool all_encoder = std::all_of(t.begin(), t.end(), [&](int32_t l) { return l < cut; });
  if (!all_decoder && !all_encoder) {
    return Fail("dspark_target_layer_ids must lie on one side of the encoder/decoder cut");
  }
  if (c.decoder_keep_rows() < c.ring_rows()) {
    return Fail("dspark_block_size = " + std::to_string(d.block_size) +
                " needs more window rows than the decoder keeps of a prompt (" +
                std::to_string(c.decoder_keep_rows()) + ")");
  }
  if (d.noise_token_id >= c.vocab_size) return Fail("dspark_noise_token_id exceeds vocab_size");
  if (d.experts_per_token > d.num_experts) {
    return Fail("dspark_num_experts_per_tok exceeds dspark_n_routed_experts");
  }
  return OkStatus();
}

}  // namespace

Status ValidateModelConfig(const ModelConfig& c) {
  DI_RETURN_IF_ERROR(CheckDimensions(c));
  const size_t want = static_cast<size_t>(c.num_layers) + static_cast<size_t>(c.dspark.num_layers);
  if (c.compress_ratios.size() != want) {
    return Fail("compress_ratios has " + std::to_string(c.compress_ratios.size()) +
                " entries, expected " + std::to_string(want) + " (layers + draft layers)");
  }
  for (size_t l = static_cast<size_t>(c.num_layers); l < want; ++l) {
    if (c.compress_ratios[l] != 0) return Fail("compress_ratios of draft layers must be 0");
  }
  if (c.bos_token_id >= c.vocab_size || c.eos_token_id >= c.vocab_size) {
    return Fail("bos_token_id and eos_token_id must be below vocab_size");
  }
  if (c.image_token_id >= c.vocab_size) {
    return Fail("image_token_id = " + std::to_string(c.image_token_id) +
                " must be below vocab_size = " + std::to_string(c.vocab_size));
  }
  DI_RETURN_IF_ERROR(CheckSources(c));
  DI_RETURN_IF_ERROR(CheckEngram(c));
  return CheckDspark(c);
}

}  // namespace deepinfer
