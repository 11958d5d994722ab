// Reading and validating the released configuration, and refusing every broken rule (model.md §2,
// §3).

#include "model/config.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <tuple>

#include "model/kv_layout.h"
#include "support/temp_dir.h"
#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// One change of the released configuration. An empty `value` removes the key.
struct Mutation {
  const char* section;  // "" = top level
  const char* key;
  const char* value;
  // What the message must name.
  const char* expected;
  StatusCode code = StatusCode::kDataCorruption;
};

std::string Mutate(const Mutation& m) {
  json::value root = json::parse(ReadText(TestDataPath("configs/v41_flash.json")));
  json::object* object = &root.as_object();
  if (*m.section != '\0') object = &object->at(m.section).as_object();
  if (*m.value == '\0') {
    EXPECT_EQ(object->erase(m.key), 1u) << m.key;
  } else {
    (*object)[m.key] = json::parse(m.value);
  }
  return json::serialize(root);
}

void ExpectRefused(const Mutation& m) {
  const Result<ModelConfig> config = ModelConfig::Parse(Mutate(m));
  ASSERT_FALSE(config.ok()) << m.key << " = " << m.value;
  EXPECT_EQ(config.status().code(), m.code) << config.status().ToString();
  EXPECT_NE(config.status().message().find(m.expected), std::string::npos)
      << m.key << " = " << m.value << ": " << config.status().message();
}

TEST(ModelConfigTest, ReadsTheReleasedValues) {
  const ModelConfig c = ReleasedConfig();
  EXPECT_EQ(std::tie(c.bos_token_id, c.eos_token_id, c.pad_token_id, c.image_token_id),
            std::make_tuple(0, 1, 2, 129264));
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(std::tie(c.vocab_size, c.dim, c.num_layers, c.num_heads, c.head_dim, c.rope_dim),
            std::make_tuple(129280, 5120, 40, 64, 512, 64));
  EXPECT_EQ(std::tie(c.q_lora_rank, c.o_groups, c.o_lora_rank), std::make_tuple(1280, 8, 1024));
  EXPECT_EQ(std::tie(c.moe_inter_dim, c.num_experts, c.experts_per_token),
            std::make_tuple(2304, 384, 6));
  EXPECT_EQ(std::tie(c.route_scale, c.gate_temp, c.swiglu_limit, c.rms_eps),
            std::make_tuple(1.5f, 1.0f, 10.0f, 1e-20f));
  EXPECT_EQ(std::tie(c.max_positions, c.rope_theta, c.compress_rope_theta, c.window),
            std::make_tuple(1048576, 10000.0, 160000.0, 128));
  EXPECT_EQ(
      std::tie(c.yarn.factor, c.yarn.beta_fast, c.yarn.beta_slow, c.yarn.original_max_positions),
      std::make_tuple(16.0f, 32.0f, 1.0f, 65536));
  EXPECT_EQ(std::tie(c.index_num_heads, c.index_head_dim, c.index_topk),
            std::make_tuple(32, 128, 512));
  EXPECT_EQ(std::tie(c.candidate_source_layer, c.candidate_topk_blocks, c.candidate_block_size),
            std::make_tuple(20, 2048, 8));
  EXPECT_EQ(std::tie(c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps), std::make_tuple(4, 20, 1e-6f));
  EXPECT_EQ(c.engram.layer_ids, (std::vector<int32_t>{1, 14}));
  EXPECT_EQ(c.engram.num_embeddings, (std::vector<int64_t>{384006168, 384016682}));
  EXPECT_EQ(c.engram.num_columns(), 24);
  EXPECT_EQ(std::tie(c.engram.vocab_size, c.engram.compressed_vocab_size, c.engram.head_dim),
            std::make_tuple(16000000, 99092, 256));
  EXPECT_EQ(std::tie(c.dspark.num_layers, c.dspark.block_size, c.dspark.noise_token_id,
                     c.dspark.markov_rank, c.dspark.num_experts, c.dspark.experts_per_token),
            std::make_tuple(3, 5, 128799, 256, 128, 3));
  EXPECT_EQ(c.dspark.target_layer_ids, (std::vector<int32_t>{37, 38, 39}));
  EXPECT_TRUE(c.unknown_keys.empty());
}

TEST(ModelConfigTest, LayerRolesAreThoseOfTheReleasedModel) {
  const ModelConfig c = ReleasedConfig();
  // Layers of each row of the table, their KV source and their top-k source.
  struct Row {
    int32_t first, last, ratio, kv_source, topk_source;
  };
  const Row rows[] = {{0, 1, 0, -1, -1},   {2, 7, 2, 2, 2},     {8, 13, 2, 8, 8},
                      {14, 19, 2, 14, 14}, {20, 23, 1, 20, 20}, {24, 27, 1, 20, 24},
                      {28, 31, 1, 20, 28}, {32, 35, 1, 20, 32}, {36, 39, 1, 20, 36},
                      {40, 42, 0, -1, -1}};
  const auto source = [](const std::vector<int32_t>& layers, int32_t index) {
    return index < 0 ? -1 : layers[static_cast<size_t>(index)];
  };
  for (const Row& row : rows) {
    for (int32_t l = row.first; l <= row.last; ++l) {
      EXPECT_EQ(c.ratio(l), row.ratio) << l;
      EXPECT_EQ(source(c.kv_source_layers, c.KvSourceOf(l)), row.kv_source) << l;
      EXPECT_EQ(source(c.index_source_layers, c.IndexSourceOf(l)), row.topk_source) << l;
      EXPECT_EQ(c.IsKvSource(l), l == row.kv_source) << l;
      EXPECT_EQ(c.IsIndexSource(l), l == row.topk_source) << l;
      EXPECT_EQ(c.EngramIndex(l), l == 1 ? 0 : l == 14 ? 1 : -1) << l;
    }
  }
  EXPECT_EQ(c.decoder_start(), 20);
  EXPECT_EQ(c.ring_rows(), 134);
  EXPECT_EQ(c.decoder_keep_rows(), 140);
}

// Every field that the forward pass reads.
auto Fields(const ModelConfig& c) {
  return std::tie(
      c.image_token_id, c.vocab_size, c.dim, c.num_layers, c.num_heads, c.head_dim, c.rope_dim,
      c.q_lora_rank, c.o_groups, c.o_lora_rank, c.moe_inter_dim, c.num_experts, c.experts_per_token,
      c.route_scale, c.gate_temp, c.swiglu_limit, c.rms_eps, c.max_positions, c.rope_theta,
      c.compress_rope_theta, c.window, c.compress_ratios, c.kv_source_layers, c.index_source_layers,
      c.candidate_source_layer, c.candidate_topk_blocks, c.candidate_block_size, c.index_num_heads,
      c.index_head_dim, c.index_topk, c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.yarn.factor,
      c.yarn.beta_fast, c.yarn.beta_slow, c.yarn.original_max_positions);
}
auto EngramFields(const EngramConfig& e) {
  return std::tie(e.layer_ids, e.num_embeddings, e.max_ngram_size, e.num_heads, e.head_dim,
                  e.vocab_size, e.compressed_vocab_size, e.pad_token_id);
}
auto DsparkFields(const DsparkConfig& d) {
  return std::tie(d.num_layers, d.block_size, d.noise_token_id, d.target_layer_ids, d.markov_rank,
                  d.num_experts, d.experts_per_token);
}

TEST(ModelConfigTest, TheFlatFormGivesTheSameModel) {
  const std::pair<const char*, const char*> pairs[] = {
      {"configs/v41_flash.json", "configs/v41_flash_inference.json"},
      {"golden/tiny_fp8fp4/config.json", "golden/tiny_fp8fp4/inference_config.json"},
      {"golden/tiny_bf16/config.json", "golden/tiny_bf16/inference_config.json"}};
  for (const auto& [nested, flat] : pairs) {
    const ModelConfig a = ParseConfig(nested), b = ParseConfig(flat);
    EXPECT_TRUE(Fields(a) == Fields(b)) << flat;
    EXPECT_TRUE(EngramFields(a.engram) == EngramFields(b.engram)) << flat;
    EXPECT_TRUE(DsparkFields(a.dspark) == DsparkFields(b.dspark)) << flat;
  }
}

TEST(ModelConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "moe_intermediate_size",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "routed_scaling_factor",
                          "swiglu_limit",
                          "rms_norm_eps",
                          "max_position_embeddings",
                          "rope_theta",
                          "compress_rope_theta",
                          "sliding_window",
                          "compress_ratios",
                          "kv_source_layer_ids",
                          "index_source_layer_ids",
                          "candidate_source_layer_id",
                          "candidate_topk_blocks",
                          "candidate_block_size",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "hc_eps",
                          "engram_num_embeddings",
                          "engram_vocab_size",
                          "engram_compressed_vocab_size",
                          "engram_pad_token_id",
                          "dspark_block_size",
                          "dspark_noise_token_id",
                          "dspark_target_layer_ids",
                          "dspark_markov_rank",
                          "dspark_n_routed_experts",
                          "dspark_num_experts_per_tok"}) {
    ExpectRefused({"text_config", key, "", key});
  }
}

TEST(ModelConfigTest, OtherSettingsThanTheImplementedOnesAreUnsupported) {
  const StatusCode code = StatusCode::kUnsupported;
  for (const Mutation& m : {
           Mutation{"", "model_type", R"("deepseek_v3")", "model_type", code},
           Mutation{"text_config", "num_key_value_heads", "2", "num_key_value_heads", code},
           Mutation{"text_config", "scoring_func", R"("sigmoid")", "scoring_func", code},
           Mutation{"text_config", "topk_method", R"("greedy")", "topk_method", code},
           Mutation{"text_config", "norm_topk_prob", "false", "norm_topk_prob", code},
           Mutation{"text_config", "n_shared_experts", "2", "n_shared_experts", code},
           Mutation{"text_config", "hidden_act", R"("gelu")", "hidden_act", code},
           Mutation{"text_config", "tie_word_embeddings", "true", "tie_word_embeddings", code},
           Mutation{"text_config", "attention_bias", "true", "attention_bias", code},
           Mutation{"text_config", "use_fp4_sparse_kv", "false", "use_fp4_sparse_kv", code},
           Mutation{"text_config", "hc_shifted", "false", "hc_shifted", code},
           Mutation{"text_config", "dspark_target_attn_input", "false", "dspark_target_attn_input",
                    code},
           Mutation{"text_config", "index_k_source_layer_ids", "[2, 8, 20]",
                    "index_k_source_layer_ids", code},
           Mutation{"text_config", "rope_scaling",
                    R"({"rope_type": "linear", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                        "original_max_position_embeddings": 65536})",
                    "rope_type", code},
           Mutation{"quantization_config", "quant_method", R"("int8")", "quant_method", code},
           Mutation{"quantization_config", "activation_scheme", R"("static")", "activation_scheme",
                    code},
           Mutation{"quantization_config", "weight_block_size", "[128, 128]", "weight_block_size",
                    code},
           Mutation{"quantization_config", "scale_fmt", R"("fp32")", "scale_fmt", code},
           Mutation{"quantization_config", "expert_dtype", R"("fp8")", "expert_dtype", code},
       }) {
    ExpectRefused(m);
  }
}

TEST(ModelConfigTest, EveryRuleBetweenFieldsIsChecked) {
  const std::string ratios_head = "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,";
  const std::string ones = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,";
  const std::string short_ratios = ratios_head + ones + "0,0,0]";
  const std::string draft_ratio = ratios_head + "1," + ones + "0,1,0]";
  const std::string late_pair = ratios_head + "1,1,2," + ones.substr(4) + "0,0,0]";
  const std::string bad_ratio = ratios_head + "3," + ones + "0,0,0]";
  const std::string early_pair = "[0,2" + ratios_head.substr(4) + "1," + ones + "0,0,0]";
  for (const Mutation& m : {
           // Ratios.
           Mutation{"text_config", "compress_ratios", short_ratios.c_str(), "42 entries"},
           Mutation{"text_config", "compress_ratios", bad_ratio.c_str(), "compress_ratios"},
           Mutation{"text_config", "compress_ratios", draft_ratio.c_str(), "draft layers"},
           Mutation{"text_config", "compress_ratios", late_pair.c_str(), "layer 22"},
           Mutation{"text_config", "compress_ratios", early_pair.c_str(), "layer 1 has"},
           // Sources.
           Mutation{"text_config", "kv_source_layer_ids", "[8, 14, 20]", "layer 2 has"},
           Mutation{"text_config", "kv_source_layer_ids", "[]", "kv_source_layer_ids"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 14, 8, 20]", "kv_source_layer_ids"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 8, 8, 14, 20]",
                    "kv_source_layer_ids"},
           Mutation{"text_config", "kv_source_layer_ids", "[1, 2, 8, 14, 20]",
                    "kv_source_layer_ids"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 8, 14, 20, 41]",
                    "kv_source_layer_ids"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 8, 14]", "layer 20"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 8, 14, 20, 21]", "layer 21"},
           Mutation{"text_config", "kv_source_layer_ids", "[2, 8, 14, 20, 24]",
                    "candidate_source_layer_id"},
           Mutation{"text_config", "index_source_layer_ids", "[8, 14, 20, 24, 28, 32, 36]",
                    "layer 2 has"},
           Mutation{"text_config", "index_source_layer_ids", "[2, 14, 20, 24, 28, 32, 36]",
                    "layer 8"},
           Mutation{"text_config", "index_source_layer_ids", "[2, 8, 20, 14, 24]",
                    "index_source_layer_ids"},
           Mutation{"text_config", "index_source_layer_ids", "[0, 2, 8, 14, 20]",
                    "index_source_layer_ids"},
           Mutation{"text_config", "index_source_layer_ids", "[2, 8, 14, 20, 40]",
                    "index_source_layer_ids"},
           Mutation{"text_config", "candidate_source_layer_id", "14", "candidate_source_layer_id"},
           Mutation{"text_config", "candidate_source_layer_id", "24", "candidate_source_layer_id"},
           // Engram and DSpark.
           Mutation{"text_config", "engram_layer_ids", "[1, 20]", "engram layer 20"},
           Mutation{"text_config", "engram_layer_ids", "[14, 1]", "engram_layer_ids"},
           Mutation{"text_config", "engram_num_embeddings", "[384006168]", "engram_num_embeddings"},
           Mutation{"text_config", "engram_pad_token_id", "129280", "engram_pad_token_id"},
           Mutation{"text_config", "engram_pad_id", "3", "engram_pad_id"},
           Mutation{"text_config", "dspark_target_layer_ids", "[19, 37]",
                    "dspark_target_layer_ids"},
           Mutation{"text_config", "dspark_target_layer_ids", "[38, 40]",
                    "dspark_target_layer_ids"},
           Mutation{"text_config", "dspark_target_layer_ids", "[]", "dspark_target_layer_ids"},
           Mutation{"text_config", "dspark_noise_token_id", "129280", "dspark_noise_token_id"},
           Mutation{"text_config", "dspark_num_experts_per_tok", "64", "dspark_num_experts_per_tok",
                    StatusCode::kDataCorruption},
           Mutation{"text_config", "dspark_block_size", "12", "dspark_block_size"},
           // Dimensions.
           Mutation{"text_config", "hidden_size", "5136", "hidden_size"},
           Mutation{"text_config", "q_lora_rank", "1288", "q_lora_rank"},
           Mutation{"text_config", "o_lora_rank", "1025", "o_lora_rank"},
           Mutation{"text_config", "moe_intermediate_size", "2305", "moe_intermediate_size"},
           Mutation{"text_config", "head_dim", "520", "head_dim"},
           Mutation{"text_config", "index_head_dim", "120", "index_head_dim"},
           Mutation{"text_config", "engram_head_dim", "250", "engram_head_dim"},
           Mutation{"text_config", "qk_rope_head_dim", "63", "qk_rope_head_dim"},
           Mutation{"text_config", "qk_rope_head_dim", "256", "qk_rope_head_dim"},
           Mutation{"text_config", "num_attention_heads", "63", "num_attention_heads"},
           Mutation{"text_config", "n_routed_experts", "5", "num_experts_per_tok"},
           Mutation{"text_config", "vocab_size", "1", "eos_token_id"},
           Mutation{"", "image_token_id", "129280", "image_token_id"},
       }) {
    if (std::string_view(m.key) == "dspark_num_experts_per_tok") {
      // 64 of 128 experts would be a legal choice; more than there are is not.
      EXPECT_TRUE(ModelConfig::Parse(Mutate(m)).ok());
      ExpectRefused({"text_config", "dspark_n_routed_experts", "2", m.expected});
      continue;
    }
    ExpectRefused(m);
  }
}

// Rows that are not kept stop at the cut, so a second source behind it would miss their entries.
TEST(ModelConfigTest, NoSourceOfCompressedKeysMayLieBehindTheCut) {
  json::value root =
      json::parse(Mutate({"text_config", "kv_source_layer_ids", "[2, 8, 14, 20, 24]", ""}));
  root.at("text_config").as_object()["candidate_source_layer_id"] = 24;
  const Result<ModelConfig> config = ModelConfig::Parse(json::serialize(root));
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.status().message().find("layer 24"), std::string::npos)
      << config.status().message();
}

TEST(ModelConfigTest, ValuesOutOfRangeAreNamedNotCast) {
  for (const char* value : {"0", "-1", "1e300", "-1e300", "4.5", "18446744073709551615", R"("40")",
                            "[]", "{}", "true", "9223372036854775807"}) {
    ExpectRefused({"text_config", "num_hidden_layers", value, "num_hidden_layers"});
  }
  // Rotary tables are accurate up to here only.
  ExpectRefused({"text_config", "max_position_embeddings", "2097152", "max_position_embeddings"});
  ExpectRefused({"text_config", "rope_theta", R"("big")", "rope_theta"});
  // Values that YaRN would divide by zero with.
  ExpectRefused({"text_config", "compress_rope_theta", "1.0", "compress_rope_theta"});
  ExpectRefused({"text_config", "rope_scaling",
                 R"({"rope_type": "yarn", "factor": 16, "beta_fast": 0, "beta_slow": 1,
                     "original_max_position_embeddings": 65536})",
                 "beta_fast"});
  ExpectRefused({"text_config", "hc_mult", "9", "hc_mult"});
  // The sampler's sums would overflow.
  ExpectRefused({"text_config", "vocab_size", "131072", "vocab_size"});
  ExpectRefused({"text_config", "compress_ratios", "7", "compress_ratios"});
  ExpectRefused({"text_config", "kv_source_layer_ids", "[2, 8, 14, 1e99]", "kv_source_layer_ids"});
  ExpectRefused({"text_config", "rope_scaling", "[]", "rope_scaling"});
  ExpectRefused({"", "quantization_config", "3", "quantization_config"});
  ExpectRefused({"", "text_config", "3", "text_config"});
  // A whole number written with a fraction is the number.
  EXPECT_TRUE(ModelConfig::Parse(Mutate({"text_config", "hidden_size", "5120.0", ""})).ok());
}

TEST(ModelConfigTest, BothNamesOfAKeyMustAgree) {
  ExpectRefused({"text_config", "dim", "4096", "'dim'"});
  EXPECT_TRUE(ModelConfig::Parse(Mutate({"text_config", "dim", "5120", ""})).ok());
  EXPECT_TRUE(ModelConfig::Parse(Mutate({"text_config", "engram_pad_id", "2", ""})).ok());
}

TEST(ModelConfigTest, UnknownKeysAreReportedNotFatal) {
  const Result<ModelConfig> c = ModelConfig::Parse(Mutate({"text_config", "new_feature", "7", ""}));
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->unknown_keys, std::vector<std::string>{"new_feature"});
  const Result<ModelConfig> scaling = ModelConfig::Parse(
      Mutate({"text_config", "rope_scaling",
              R"({"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                  "original_max_position_embeddings": 65536, "mscale": 1.0})",
              ""}));
  ASSERT_TRUE(scaling.ok());
  EXPECT_EQ(scaling->unknown_keys, std::vector<std::string>{"rope_scaling.mscale"});
}

// Digits, signs and brackets replaced at random: whatever still parses has passed every rule, so
// the sizes derived from it are sound; the rest is refused with a reason.
TEST(ModelConfigTest, DamagedTextsAreRefusedOrValid) {
  const std::string sound = ReadText(TestDataPath("configs/v41_flash.json"));
  constexpr std::string_view kBytes = "0123456789-.eE[]{},:\"ntf \\";
  std::mt19937 rng(17);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = sound;
    for (uint32_t n = 1 + rng() % 3; n > 0; --n) {
      text[rng() % text.size()] = kBytes[rng() % kBytes.size()];
    }
    const Result<ModelConfig> config = ModelConfig::Parse(text);
    if (!config.ok()) {
      ASSERT_FALSE(config.status().message().empty()) << i;
      continue;
    }
    ++accepted;
    const KvLayout layout = KvLayout::Create(*config, KvFormat::kQuantized);
    ASSERT_GT(layout.block_bytes, 0) << i;
    ASSERT_GT(layout.slot_bytes, 0) << i;
    ASSERT_EQ(config->compress_ratios.size(),
              static_cast<size_t>(config->num_layers + config->dspark.num_layers));
  }
  EXPECT_GT(accepted, 0);
}

TEST(ModelConfigTest, FilesThatAreNoConfigurationAreRefused) {
  for (const char* text : {"", "{", "[]", "7", "null", "{}", "{\"text_config\": {}}"}) {
    EXPECT_FALSE(ModelConfig::Parse(text).ok()) << text;
  }
  EXPECT_FALSE(ModelConfig::Parse(std::string(10000, '[')).ok());
  const TempDir dir;
  const Result<ModelConfig> missing = ModelConfig::Load(dir.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("config.json"), std::string::npos);
  dir.Write("config.json", "{\"vocab_size\": true}");
  const Result<ModelConfig> bad = ModelConfig::Load(dir.path());
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find(dir.File("config.json")), std::string::npos);
  const std::string sound = ReadText(TestDataPath("configs/v41_flash.json"));
  dir.Write("config.json", sound + std::string(100'000, ' '));
  EXPECT_TRUE(ModelConfig::Load(dir.path()).ok());
  dir.Write("config.json", sound + std::string(17 << 20, ' '));
  const Result<ModelConfig> huge = ModelConfig::Load(dir.path());
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.status().message().find("config.json"), std::string::npos);
  std::filesystem::remove(dir.File("config.json"));
  std::filesystem::create_directory(dir.File("config.json"));
  EXPECT_FALSE(ModelConfig::Load(dir.path()).ok());
}

}  // namespace
}  // namespace deepinfer
