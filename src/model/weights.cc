#include "model/weights.h"

#include <string>

#include "model/tensor_reader.h"
#include "tensor/json_events.h"

namespace deepinfer {

namespace {

void ReadAttention(TensorReader* r, const ModelConfig& c, const std::string& p,
                   AttentionWeights* a) {
  const int64_t q_width = int64_t{c.num_heads} * c.head_dim;
  a->wq_a = r->Fp8(p + "wq_a", c.q_lora_rank, c.dim);
  a->wq_b = r->Fp8(p + "wq_b", q_width, c.q_lora_rank);
  a->wkv = r->Fp8(p + "wkv", c.head_dim, c.dim);
  a->wo_a = r->Fp8(p + "wo_a", c.o_groups * c.o_lora_rank, q_width / c.o_groups);
  a->wo_b = r->Fp8(p + "wo_b", c.dim, c.o_groups * c.o_lora_rank);
  a->q_norm = r->Bf16(p + "q_norm.weight", {c.q_lora_rank});
  a->kv_norm = r->Bf16(p + "kv_norm.weight", {c.head_dim});
  a->sink = r->F32(p + "attn_sink", {c.num_heads});
}

HcSite ReadHcSite(TensorReader* r, const ModelConfig& c, const std::string& p) {
  const int64_t mixes = (2 + c.hc_mult) * c.hc_mult;
  return {r->F32(p + "_fn", {mixes, c.hc_mult * c.dim}), r->F32(p + "_base", {mixes}),
          r->F32(p + "_scale", {3})};
}

ExpertWeights ReadExpert(TensorReader* r, const ModelConfig& c, const std::string& p, bool fp4) {
  const auto matrix = [&](const char* name, int64_t out, int64_t in) {
    return fp4 ? r->Fp4(p + name, out, in) : r->Fp8(p + name, out, in);
  };
  return {matrix("w1", c.moe_inter_dim, c.dim), matrix("w3", c.moe_inter_dim, c.dim),
          matrix("w2", c.dim, c.moe_inter_dim)};
}

void ReadMoe(TensorReader* r, const ModelConfig& c, const std::string& p, int32_t num_experts,
             MoeWeights* m) {
  m->gate = r->Bf16Matrix(p + "gate.weight", num_experts, c.dim);
  m->bias = r->F32(p + "gate.bias", {num_experts});
  m->bias_image = r->F32(p + "gate.bias_vl", {num_experts});
  for (int32_t e = 0; e < num_experts && r->ok(); ++e) {
    m->experts.push_back(ReadExpert(r, c, p + "experts." + std::to_string(e) + ".", true));
  }
  m->shared = ReadExpert(r, c, p + "shared_experts.", false);
}

void ReadBlock(TensorReader* r, const ModelConfig& c, const std::string& p, int32_t num_experts,
               BlockWeights* b) {
  b->attn_norm = r->Bf16(p + "attn_norm.weight", {c.dim});
  b->ffn_norm = r->Bf16(p + "ffn_norm.weight", {c.dim});
  b->hc_attn = ReadHcSite(r, c, p + "hc_attn");
  b->hc_ffn = ReadHcSite(r, c, p + "hc_ffn");
  ReadAttention(r, c, p + "attn.", &b->attention);
  ReadMoe(r, c, p + "ffn.", num_experts, &b->moe);
}

void ReadCompressor(TensorReader* r, const ModelConfig& c, int32_t layer, CompressorWeights* w) {
  const std::string p = "layers." + std::to_string(layer) + ".attn.";
  w->wkv = r->Bf16Matrix(p + "compressor.wkv.weight", c.head_dim, c.dim);
  if (c.ratio(layer) == 2) {
    w->wgate = r->Bf16Matrix(p + "compressor.wgate.weight", c.head_dim, c.dim);
  }
  w->norm = r->Bf16(p + "compressor.norm.weight", {c.head_dim});
  w->index_wk = r->Bf16Matrix(p + "indexer.wk.weight", c.index_head_dim, c.head_dim);
  w->index_k_norm = r->Bf16(p + "indexer.k_norm.weight", {c.index_head_dim});
}

void ReadIndexer(TensorReader* r, const ModelConfig& c, int32_t layer, IndexerWeights* w) {
  const std::string p = "layers." + std::to_string(layer) + ".attn.indexer.";
  w->wq_b = r->Fp8(p + "wq_b", int64_t{c.index_num_heads} * c.index_head_dim, c.q_lora_rank);
  w->weights_proj = r->Bf16Matrix(p + "weights_proj.weight", c.index_num_heads, c.dim);
}

void ReadEngram(TensorReader* r, const ModelConfig& c, int32_t layer, EngramWeights* w) {
  const EngramConfig& e = c.engram;
  const std::string p = "layers." + std::to_string(layer) + ".engram.";
  const int64_t rows = e.num_embeddings[static_cast<size_t>(c.EngramIndex(layer))];
  w->table = r->Fp8Rows(p + "embed", rows, e.head_dim);
  w->wkv = r->Fp8(p + "wkv", (c.hc_mult + 1) * c.dim, int64_t{e.num_columns()} * e.head_dim);
  w->q_weight = r->Bf16(p + "q_weight", {c.hc_mult, c.dim});
  w->k_weight = r->Bf16(p + "k_weight", {c.hc_mult, c.dim});
}

void ReadDspark(TensorReader* r, const ModelConfig& c, DsparkWeights* w) {
  const DsparkConfig& d = c.dspark;
  if (d.num_layers == 0) return;
  for (int32_t i = 0; i < d.num_layers; ++i) {
    ReadBlock(r, c, "mtp." + std::to_string(i) + ".", d.num_experts, &w->layers.emplace_back());
  }
  const std::string last = "mtp." + std::to_string(d.num_layers - 1) + ".";
  const int64_t targets = static_cast<int64_t>(d.target_layer_ids.size());
  w->main_proj = r->Fp8("mtp.0.main_proj", c.dim, targets * c.dim);
  w->main_norm = r->Bf16("mtp.0.main_norm.weight", {c.dim});
  w->norm = r->Bf16(last + "norm.weight", {c.dim});
  w->markov_embed = r->Bf16(last + "markov_head.embed.weight", {c.vocab_size, d.markov_rank});
  w->markov_head = r->Bf16Matrix(last + "markov_head.head.weight", c.vocab_size, d.markov_rank);
  w->confidence = r->Bf16Matrix(last + "confidence_head.proj.weight", 1, c.dim + d.markov_rank);
}

// The vision part belongs to the image path, which validates it where it is used.
bool IsVisionTensor(std::string_view name) {
  return name.starts_with("vision.") || name.starts_with("aligner.") || name == "image_start" ||
         name == "image_end" || name == "image_newline";
}

Status CheckLeftovers(const Checkpoint& checkpoint) {
  for (std::string_view name : checkpoint.UnconsumedNames()) {
    if (IsVisionTensor(name)) continue;
    const size_t shard = static_cast<size_t>(checkpoint.ShardOf(name));
    return DataCorruption(checkpoint.shard_path(shard) + ": tensor " + QuoteForMessage(name) +
                          " belongs to no part of the configured model: config.json and the "
                          "shards do not fit together");
  }
  return OkStatus();
}

}  // namespace

Result<ModelWeights> LoadModelWeights(const ModelConfig& c, ModelPart part,
                                      const WeightCheckOptions& options, Checkpoint* checkpoint) {
  ModelWeights w;
  TensorReader r(checkpoint, options, &w.realigned);
  w.embed = r.Bf16("embed.weight", {c.vocab_size, c.dim});
  const bool whole = part == ModelPart::kWhole;
  const int32_t num_layers = whole ? c.num_layers : c.decoder_start() + 1;
  for (int32_t l = 0; l < num_layers && r.ok(); ++l) {
    LayerWeights& layer = w.layers.emplace_back();
    const std::string prefix = "layers." + std::to_string(l) + ".";
    const bool publishes_only = !whole && l == c.decoder_start();
    if (publishes_only) {
      layer.block.attn_norm = r.Bf16(prefix + "attn_norm.weight", {c.dim});
    } else {
      ReadBlock(&r, c, prefix, c.num_experts, &layer.block);
    }
    if (c.IsKvSource(l)) ReadCompressor(&r, c, l, &layer.compressor);
    if (c.IsIndexSource(l) && !publishes_only) ReadIndexer(&r, c, l, &layer.indexer);
    if (c.EngramIndex(l) >= 0) ReadEngram(&r, c, l, &layer.engram);
  }
  if (!whole) {
    DI_RETURN_IF_ERROR(r.status());
    return w;
  }
  w.norm = r.Bf16("norm.weight", {c.dim});
  w.head = r.Bf16Matrix("head.weight", c.vocab_size, c.dim);
  ReadDspark(&r, c, &w.dspark);
  DI_RETURN_IF_ERROR(r.status());
  DI_RETURN_IF_ERROR(CheckLeftovers(*checkpoint));
  return w;
}

}  // namespace deepinfer
