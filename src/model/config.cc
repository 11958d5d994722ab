#include "model/config.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace deepinfer {

namespace {

namespace json = boost::json;

std::string Quote(std::string_view key) { return "config key '" + std::string(key) + "'"; }

// Reads fields by either of two names and remembers what was read.
class Reader {
 public:
  Reader(const json::object& object, std::set<std::string, std::less<>>* seen)
      : object_(object), seen_(seen) {}

  const Status& status() const { return status_; }

  // The value under either name; nullptr when absent or null. Both names with different values
  // are an error.
  const json::value* Find(std::string_view name, std::string_view alias = {}) {
    const json::value* found = nullptr;
    for (std::string_view key : {name, alias}) {
      const json::value* v = key.empty() ? nullptr : object_.if_contains(key);
      if (v == nullptr) continue;
      seen_->emplace(key);
      if (v->is_null()) continue;
      if (found == nullptr) {
        found = v;
        key_ = key;
      } else if (*v != *found) {
        Fail("and '" + std::string(key) + "' must be equal, found " + json::serialize(*found) +
                 " and ",
             *v);
      }
    }
    return found;
  }

  template <typename Int>
  void Integer(Int* out, std::string_view name, std::string_view alias, int64_t min, int64_t max,
               bool required = true) {
    const json::value* v = Find(name, alias);
    if (v == nullptr) return Missing(name, required);
    int64_t n = 0;
    if (!ToInteger(*v, &n) || n < min || n > max) {
      return Fail("must be an integer in [" + std::to_string(min) + ", " + std::to_string(max) +
                      "], found ",
                  *v);
    }
    *out = static_cast<Int>(n);
  }

  template <typename Float>
  void Number(Float* out, std::string_view name, std::string_view alias, double min, double max,
              bool required = true) {
    const json::value* v = Find(name, alias);
    if (v == nullptr) return Missing(name, required);
    const double d = v->is_double()  ? v->get_double()
                     : v->is_int64() ? static_cast<double>(v->get_int64())
                                     : min - 1;
    if (!(d >= min && d <= max)) return Fail("is outside its range: ", *v);
    *out = static_cast<Float>(d);
  }

  template <typename Int>
  void IntegerList(std::vector<Int>* out, std::string_view name, std::string_view alias,
                   int64_t min, int64_t max, bool required = true) {
    const json::value* v = Find(name, alias);
    if (v == nullptr) return Missing(name, required);
    if (!v->is_array() || v->get_array().size() > 4096) return Fail("must be a list: ", *v);
    out->clear();
    for (const json::value& item : v->get_array()) {
      int64_t n = 0;
      if (!ToInteger(item, &n) || n < min || n > max) return Fail("holds a bad item: ", item);
      out->push_back(static_cast<Int>(n));
    }
  }

  // The value, when present, must equal `want`: other settings are not implemented.
  void MustBe(const json::value& want, std::string_view name, std::string_view alias = {}) {
    const json::value* v = Find(name, alias);
    if (v != nullptr && *v != want) {
      Fail("only " + json::serialize(want) + " is supported, found ", *v, StatusCode::kUnsupported);
    }
  }

 private:
  static bool ToInteger(const json::value& v, int64_t* out) {
    if (v.is_int64()) {
      *out = v.get_int64();
      return true;
    }
    // Whole numbers that some writers print with a fraction; the bound keeps the cast defined.
    const double d = v.is_double() ? v.get_double() : 0.5;
    if (std::fabs(d) > 1e15 || d != std::trunc(d)) return false;
    *out = static_cast<int64_t>(d);
    return true;
  }

  void Missing(std::string_view name, bool required) {
    if (required && status_.ok()) status_ = DataCorruption(Quote(name) + " is missing");
  }

  void Fail(const std::string& what, const json::value& found,
            StatusCode code = StatusCode::kDataCorruption) {
    if (!status_.ok()) return;
    std::string text = json::serialize(found);
    if (text.size() > 80) text = text.substr(0, 80) + "...";
    status_ = Status(code, Quote(key_) + " " + what + text);
  }

  const json::object& object_;
  std::set<std::string, std::less<>>* seen_;
  std::string key_;
  Status status_;
};

constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxInt32 = 0x7fffffff;
// Sampling sums one weight of up to 2^46 for every id in 64 bits (numerics.md §5.3).
constexpr int64_t kMaxVocab = (1 << 17) - 1;
// Rotary angles reach the position itself, and DetSinCos is accurate below 2^20·pi/2.
constexpr int64_t kMaxPositions = 1 << 20;
// YaRN divides by the logarithm of the base and by the numbers of rotations.
constexpr double kMinTheta = 1.001;
constexpr double kMinRotations = 1e-6;
// A configuration is a few KB; the limit keeps a wrong file from being read into memory.
constexpr uintmax_t kMaxConfigBytes = 16 << 20;

void ReadShape(Reader* r, ModelConfig* c) {
  r->Integer(&c->vocab_size, "vocab_size", "", 1, kMaxVocab);
  r->Integer(&c->dim, "hidden_size", "dim", 32, kMaxDim);
  r->Integer(&c->num_layers, "num_hidden_layers", "n_layers", 1, 1024);
  r->Integer(&c->num_heads, "num_attention_heads", "n_heads", 1, 4096);
  r->MustBe(1, "num_key_value_heads");
  r->Integer(&c->head_dim, "head_dim", "", 32, 1 << 14);
  r->Integer(&c->rope_dim, "qk_rope_head_dim", "rope_head_dim", 2, 1 << 14);
  r->Integer(&c->q_lora_rank, "q_lora_rank", "", 32, kMaxDim);
  r->Integer(&c->o_groups, "o_groups", "", 1, 4096);
  r->Integer(&c->o_lora_rank, "o_lora_rank", "", 1, kMaxDim);
  r->Integer(&c->max_positions, "max_position_embeddings", "max_seq_len", 1, kMaxPositions);
  r->Number(&c->rms_eps, "rms_norm_eps", "norm_eps", 0.0, 1.0);
  r->MustBe(false, "tie_word_embeddings");
  r->MustBe(false, "attention_bias");
  r->MustBe("silu", "hidden_act");
  r->MustBe(true, "hc_shifted");
  r->MustBe(true, "dspark_target_attn_input");
  r->MustBe(true, "use_fp4_sparse_kv");
  r->Integer(&c->hc_mult, "hc_mult", "", 2, 8);
  r->Integer(&c->hc_sinkhorn_iters, "hc_sinkhorn_iters", "", 1, 1000);
  r->Number(&c->hc_eps, "hc_eps", "", 0.0, 1.0);
}

void ReadMoe(Reader* r, ModelConfig* c) {
  r->Integer(&c->moe_inter_dim, "moe_intermediate_size", "moe_inter_dim", 32, kMaxDim);
  r->Integer(&c->num_experts, "n_routed_experts", "", 1, 1 << 16);
  r->MustBe(1, "n_shared_experts");
  r->Integer(&c->experts_per_token, "num_experts_per_tok", "n_activated_experts", 1, 64);
  r->MustBe("sqrtsoftplus", "scoring_func", "score_func");
  r->MustBe("noaux_tc", "topk_method");
  r->MustBe(true, "norm_topk_prob");
  r->MustBe("fp4", "expert_dtype");  // flat form; null in the dequantised one
  r->Number(&c->route_scale, "routed_scaling_factor", "route_scale", 0.0, 1e6);
  r->Number(&c->gate_temp, "gate_temp", "", 1e-6, 1e6, false);
  r->Number(&c->swiglu_limit, "swiglu_limit", "", 0.0, 1e30);
}

void ReadAttention(Reader* r, ModelConfig* c) {
  r->Number(&c->rope_theta, "rope_theta", "", kMinTheta, 1e12);
  r->Number(&c->compress_rope_theta, "compress_rope_theta", "", kMinTheta, 1e12);
  r->Integer(&c->window, "sliding_window", "window_size", 1, 1 << 16);
  r->IntegerList(&c->compress_ratios, "compress_ratios", "", 0, 2);
  r->IntegerList(&c->kv_source_layers, "kv_source_layer_ids", "kv_source_layers", 0, 1023);
  r->IntegerList(&c->index_source_layers, "index_source_layer_ids", "index_source_layers", 0, 1023);
  r->Integer(&c->candidate_source_layer, "candidate_source_layer_id", "candidate_source_layer", 0,
             1023);
  r->Integer(&c->candidate_topk_blocks, "candidate_topk_blocks", "", 1, 1 << 20);
  r->Integer(&c->candidate_block_size, "candidate_block_size", "", 1, 1 << 16);
  r->Integer(&c->index_num_heads, "index_n_heads", "", 1, 4096);
  r->Integer(&c->index_head_dim, "index_head_dim", "", 32, 1 << 14);
  r->Integer(&c->index_topk, "index_topk", "", 1, 1 << 16);
  std::vector<int32_t> index_k_sources = c->kv_source_layers;
  r->IntegerList(&index_k_sources, "index_k_source_layer_ids", "", 0, 1023, false);
  if (index_k_sources != c->kv_source_layers) {
    r->MustBe(json::value_from(c->kv_source_layers), "index_k_source_layer_ids");
  }
}

void ReadEngram(Reader* r, EngramConfig* e) {
  r->IntegerList(&e->layer_ids, "engram_layer_ids", "", 0, 1023, false);
  if (e->layer_ids.empty()) return;
  r->IntegerList(&e->num_embeddings, "engram_num_embeddings", "", 1, int64_t{1} << 40);
  r->Integer(&e->max_ngram_size, "engram_max_ngram_size", "", 2, 4);
  r->Integer(&e->num_heads, "engram_n_heads", "", 1, 64);
  r->Integer(&e->head_dim, "engram_head_dim", "", 32, 1 << 14);
  r->Integer(&e->vocab_size, "engram_vocab_size", "", 2, int64_t{1} << 40);
  r->Integer(&e->compressed_vocab_size, "engram_compressed_vocab_size", "", 1, 1 << 24);
  r->Integer(&e->pad_token_id, "engram_pad_token_id", "engram_pad_id", 0, kMaxInt32);
}

void ReadDspark(Reader* r, DsparkConfig* d) {
  r->Integer(&d->num_layers, "num_nextn_predict_layers", "n_mtp_layers", 0, 64, false);
  if (d->num_layers == 0) return;
  r->Integer(&d->block_size, "dspark_block_size", "", 1, 64);
  r->Integer(&d->noise_token_id, "dspark_noise_token_id", "", 0, kMaxInt32);
  r->IntegerList(&d->target_layer_ids, "dspark_target_layer_ids", "", 0, 1023);
  r->Integer(&d->markov_rank, "dspark_markov_rank", "", 1, kMaxDim);
  r->Integer(&d->num_experts, "dspark_n_routed_experts", "", 1, 1 << 16);
  r->Integer(&d->experts_per_token, "dspark_num_experts_per_tok", "dspark_n_activated_experts", 1,
             64);
}

Status ReadYarn(const json::object& text, std::set<std::string, std::less<>>* seen,
                ModelConfig* c) {
  const json::value* scaling = text.if_contains("rope_scaling");
  if (scaling != nullptr && !scaling->is_null()) {
    seen->emplace("rope_scaling");
    if (!scaling->is_object()) return DataCorruption(Quote("rope_scaling") + " must be an object");
    std::set<std::string, std::less<>> inner;
    Reader r(scaling->get_object(), &inner);
    r.MustBe("yarn", "rope_type", "type");
    r.Number(&c->yarn.factor, "factor", "", 1.0, 1e6);
    r.Number(&c->yarn.beta_fast, "beta_fast", "", kMinRotations, 1e6);
    r.Number(&c->yarn.beta_slow, "beta_slow", "", kMinRotations, 1e6);
    r.Integer(&c->yarn.original_max_positions, "original_max_position_embeddings", "", 1, 1 << 24);
    for (const auto& item : scaling->get_object()) {
      const std::string key(item.key());
      if (!inner.contains(key)) c->unknown_keys.push_back("rope_scaling." + key);
    }
    return r.status().Annotate("rope_scaling");
  }
  Reader r(text, seen);
  r.Integer(&c->yarn.original_max_positions, "original_seq_len", "", 0, 1 << 24, false);
  r.Number(&c->yarn.factor, "rope_factor", "", 1.0, 1e6, false);
  r.Number(&c->yarn.beta_fast, "beta_fast", "", kMinRotations, 1e6, false);
  r.Number(&c->yarn.beta_slow, "beta_slow", "", kMinRotations, 1e6, false);
  return r.status();
}

Status CheckQuantization(const json::value* q) {
  if (q == nullptr || q->is_null()) return OkStatus();  // the dequantised form has none
  if (!q->is_object()) return DataCorruption(Quote("quantization_config") + " must be an object");
  std::set<std::string, std::less<>> seen;
  Reader r(q->get_object(), &seen);
  r.MustBe("fp8", "quant_method");
  r.MustBe("dynamic", "activation_scheme");
  r.MustBe(json::array{32, 32}, "weight_block_size");
  r.MustBe("ue8m0", "scale_fmt");
  r.MustBe("fp4", "expert_dtype");
  return r.status().Annotate("quantization_config");
}

}  // namespace

Result<ModelConfig> ModelConfig::Parse(std::string_view text) {
  boost::system::error_code ec;
  json::parse_options options;
  options.max_depth = 16;
  const json::value root = json::parse(text, ec, {}, options);
  if (ec) return DataCorruption("config.json is not valid JSON: " + ec.message());
  if (!root.is_object()) return DataCorruption("config.json must hold an object");
  const json::object& top = root.get_object();
  const json::value* nested = top.if_contains("text_config");
  if (nested != nullptr && !nested->is_object()) {
    return DataCorruption(Quote("text_config") + " must be an object");
  }
  const json::object& body = nested != nullptr ? nested->get_object() : top;

  ModelConfig c;
  std::set<std::string, std::less<>> seen;
  Reader outer(top, &seen);
  outer.MustBe("deepseek_v41", "model_type");
  outer.Integer(&c.bos_token_id, "bos_token_id", "", 0, kMaxInt32, false);
  outer.Integer(&c.eos_token_id, "eos_token_id", "", 0, kMaxInt32, false);
  outer.Integer(&c.pad_token_id, "pad_token_id", "", 0, kMaxInt32, false);
  outer.Integer(&c.image_token_id, "image_token_id", "", 0, kMaxInt32, false);
  DI_RETURN_IF_ERROR(outer.status());
  c.has_vision = top.contains("vision_config") && top.at("vision_config").is_object();
  DI_RETURN_IF_ERROR(CheckQuantization(top.if_contains("quantization_config")));

  std::set<std::string, std::less<>> read;
  Reader r(body, &read);
  ReadShape(&r, &c);
  ReadMoe(&r, &c);
  ReadAttention(&r, &c);
  ReadEngram(&r, &c.engram);
  ReadDspark(&r, &c.dspark);
  DI_RETURN_IF_ERROR(r.status());
  DI_RETURN_IF_ERROR(ReadYarn(body, &read, &c));
  static const std::set<std::string_view> kIgnored = {
      "model_type", "attention_dropout",      "initializer_range",
      "use_cache",  "max_batch_size",         "temperature",
      "dtype",      "tokenizer_compatibility"};
  for (const auto& item : body) {
    const std::string_view key(item.key().data(), item.key().size());
    if (!read.contains(key) && !seen.contains(key) && !kIgnored.contains(key) &&
        nested != nullptr) {
      c.unknown_keys.emplace_back(key);
    }
  }
  DI_RETURN_IF_ERROR(ValidateModelConfig(c));
  return c;
}

Result<ModelConfig> ModelConfig::Load(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(path.string() + ": cannot be opened; is this a model folder?");
  std::error_code ec;
  const uintmax_t size_bytes = std::filesystem::file_size(path, ec);
  if (ec || size_bytes > kMaxConfigBytes) {
    return DataCorruption(path.string() + ": not a regular file of at most " +
                          std::to_string(kMaxConfigBytes) + " bytes");
  }
  std::ostringstream text;
  text << file.rdbuf();
  Result<ModelConfig> config = Parse(text.str());
  if (!config.ok()) return config.status().Annotate(path.string());
  return config;
}

int32_t ModelConfig::decoder_start() const {
  const auto end = compress_ratios.begin() + num_layers;
  return static_cast<int32_t>(std::find(compress_ratios.begin(), end, 1) - compress_ratios.begin());
}

namespace {

int32_t LastAtMost(const std::vector<int32_t>& layers, int32_t layer) {
  return static_cast<int32_t>(std::upper_bound(layers.begin(), layers.end(), layer) -
                              layers.begin()) -
         1;
}

bool Contains(const std::vector<int32_t>& layers, int32_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

}  // namespace

int32_t ModelConfig::KvSourceOf(int32_t layer) const {
  return ratio(layer) == 0 ? -1 : LastAtMost(kv_source_layers, layer);
}

int32_t ModelConfig::IndexSourceOf(int32_t layer) const {
  return ratio(layer) == 0 ? -1 : LastAtMost(index_source_layers, layer);
}

bool ModelConfig::IsKvSource(int32_t layer) const { return Contains(kv_source_layers, layer); }

bool ModelConfig::IsIndexSource(int32_t layer) const {
  return Contains(index_source_layers, layer);
}

int32_t ModelConfig::EngramIndex(int32_t layer) const {
  const auto it = std::find(engram.layer_ids.begin(), engram.layer_ids.end(), layer);
  return it == engram.layer_ids.end() ? -1 : static_cast<int32_t>(it - engram.layer_ids.begin());
}

int32_t ModelConfig::ring_rows() const {
  constexpr int32_t kMaxDrafts = 5;
  return window + std::max(kMaxDrafts, dspark.block_size) + 1;
}

}  // namespace deepinfer
