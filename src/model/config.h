// Configuration of a V4.1 model: the text part of config.json, validated, with the layer roles
// derived from it (model.md §2, §3).
// Thread rule: immutable after loading.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct YarnScaling {
  float factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  int32_t original_max_positions = 0;  // 0 = no scaling
};

struct EngramConfig {
  std::vector<int32_t> layer_ids;       // empty: the model has no Engram
  std::vector<int64_t> num_embeddings;  // table rows per layer id
  int32_t max_ngram_size = 4;
  int32_t num_heads = 8;
  int32_t head_dim = 256;
  int64_t vocab_size = 0;             // start of the prime search
  int32_t compressed_vocab_size = 0;  // classes of the token map
  int32_t pad_token_id = 2;

  int32_t num_columns() const { return (max_ngram_size - 1) * num_heads; }
};

struct DsparkConfig {
  int32_t num_layers = 0;  // 0: the model has no draft layers
  int32_t block_size = 0;
  int32_t noise_token_id = 0;
  std::vector<int32_t> target_layer_ids;
  int32_t markov_rank = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
};

inline constexpr int32_t kDecoderKeepRows = 140;

struct ModelConfig {
  int32_t bos_token_id = 0;
  int32_t eos_token_id = 1;
  int32_t pad_token_id = 2;
  int32_t image_token_id = -1;  // -1: none
  bool has_vision = false;

  int32_t vocab_size = 0;
  int64_t dim = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;
  int64_t q_lora_rank = 0;
  int32_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t moe_inter_dim = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  float route_scale = 1.0f;
  float gate_temp = 1.0f;
  float swiglu_limit = 0.0f;
  float rms_eps = 1e-20f;
  int32_t max_positions = 0;
  double rope_theta = 10000.0;
  double compress_rope_theta = 160000.0;
  YarnScaling yarn;
  int32_t window = 0;
  std::vector<int32_t> compress_ratios;  // backbone layers, then draft layers
  std::vector<int32_t> kv_source_layers;
  std::vector<int32_t> index_source_layers;
  int32_t candidate_source_layer = -1;
  int32_t candidate_topk_blocks = 0;
  int32_t candidate_block_size = 0;
  int32_t index_num_heads = 0;
  int32_t index_head_dim = 0;
  int32_t index_topk = 0;
  int32_t hc_mult = 4;
  int32_t hc_sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  EngramConfig engram;
  DsparkConfig dspark;

  std::vector<std::string> unknown_keys;  // present in the file, not read

  // First layer with ratio 1: the encoder/decoder cut; num_layers if there is none.
  int32_t decoder_start() const;
  int32_t ratio(int32_t layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  // Index into kv_source_layers / index_source_layers that a layer with ratio > 0 reads; -1 for
  // ratio 0.
  int32_t KvSourceOf(int32_t layer) const;
  int32_t IndexSourceOf(int32_t layer) const;
  bool IsKvSource(int32_t layer) const;
  bool IsIndexSource(int32_t layer) const;
  // Position of the layer among the Engram layers; -1 if it is none.
  int32_t EngramIndex(int32_t layer) const;

  // Rows of a sliding-window ring: window + max(backtrack, drafts + 1) (model.md §12).
  int32_t ring_rows() const;

  // Prompt rows that run the decoder: 140, the released model's window and 12 more (model.md
  // §13.1), or as much for a wider window. It must not be below ring_rows.
  int32_t decoder_keep_rows() const { return std::max(kDecoderKeepRows, window + 12); }

  // Reads DIR/config.json, or a flat inference configuration under the short names. Errors name
  // file, key and value.
  static Result<ModelConfig> Load(const std::filesystem::path& dir);
  static Result<ModelConfig> Parse(std::string_view json);
};

// The rules between fields (model.md §2); called by Parse.
Status ValidateModelConfig(const ModelConfig& config);

}  // namespace deepinfer
