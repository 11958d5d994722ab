// Weights of a V4.1 checkpoint, borrowed from the mapped files in stored form (model.md §14).
// Loading validates every name, shape and dtype.
// Thread rule: immutable after loading; lives no longer than its Checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "tensor/checkpoint.h"

namespace deepinfer {

struct AttentionWeights {
  WeightMatrix wq_a, wq_b, wkv, wo_a, wo_b;
  const uint16_t* q_norm = nullptr;   // bf16 [q_lora_rank]
  const uint16_t* kv_norm = nullptr;  // bf16 [head_dim]
  const float* sink = nullptr;        // f32 [num_heads]
};

// KV sources only.
struct CompressorWeights {
  WeightMatrix wkv;
  WeightMatrix wgate;              // ratio 2 only
  const uint16_t* norm = nullptr;  // bf16 [head_dim]
  WeightMatrix index_wk;
  const uint16_t* index_k_norm = nullptr;  // bf16 [index_head_dim]
};

// Index sources only.
struct IndexerWeights {
  WeightMatrix wq_b;
  WeightMatrix weights_proj;
};

struct MoeWeights {
  WeightMatrix gate;
  const float* bias = nullptr;        // f32 [num_experts]
  const float* bias_image = nullptr;  // f32 [num_experts]
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
};

struct EngramWeights {
  WeightMatrix table;                  // [rows, engram head_dim]
  WeightMatrix wkv;                    // [(hc_mult + 1)·dim, columns·head_dim]
  const uint16_t* q_weight = nullptr;  // bf16 [hc_mult, dim]
  const uint16_t* k_weight = nullptr;
};

// One transformer block, of the backbone or of the draft model.
struct BlockWeights {
  const uint16_t* attn_norm = nullptr;  // bf16 [dim]
  const uint16_t* ffn_norm = nullptr;
  HcSite hc_attn, hc_ffn;
  AttentionWeights attention;
  MoeWeights moe;
};

struct LayerWeights {
  BlockWeights block;
  CompressorWeights compressor;
  IndexerWeights indexer;
  EngramWeights engram;
};

struct DsparkWeights {
  WeightMatrix main_proj;
  const uint16_t* main_norm = nullptr;
  std::vector<BlockWeights> layers;
  const uint16_t* norm = nullptr;
  const uint16_t* markov_embed = nullptr;  // bf16 [vocab, rank]
  WeightMatrix markov_head;
  WeightMatrix confidence;
};

struct ModelWeights {
  const uint16_t* embed = nullptr;  // bf16 [vocab, dim]
  const uint16_t* norm = nullptr;   // bf16 [dim]
  WeightMatrix head;
  std::vector<LayerWeights> layers;
  DsparkWeights dspark;

  // Tensors that a shard places at an address their type cannot be read from.
  std::vector<std::unique_ptr<std::byte[]>> realigned;
};

// Which part of the model runs.
enum class ModelPart : unsigned char {
  kWhole,
  kEncoder,  // layers below the decoder, and what its first layer publishes (model.md §13.1)
};

struct WeightCheckOptions {
  bool scan_codes = false;  // also look for NaN codes in every E4M3 tensor: reads the whole model
};

// Takes every tensor the configuration calls for; of a part those that it runs. data_corruption or
// not_found name the tensor; left-over names outside the vision part are an error, with the whole
// model.
Result<ModelWeights> LoadModelWeights(const ModelConfig& config, ModelPart part,
                                      const WeightCheckOptions& options, Checkpoint* checkpoint);

}  // namespace deepinfer
