// Loading: every rule of model.md §14 on mutated copies of the tiny checkpoint.

#include "model/weights.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/checkpoint_copy.h"
#include "tensor/codecs.h"
#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

// A changed copy on disk, opened and loaded.
struct Loaded {
  explicit Loaded(const std::function<void(CheckpointCopy*)>& change,
                  const WeightCheckOptions& options = {},
                  const std::function<void(const TempDir&)>& after = {},
                  const char* checkpoint_name = "golden/tiny_fp8fp4",
                  ModelPart part = ModelPart::kWhole) {
    CheckpointCopy copy(TestDataPath(checkpoint_name));
    change(&copy);
    copy.Write(dir);
    if (after) after(dir);
    checkpoint = std::make_unique<Result<Checkpoint>>(Checkpoint::Open(dir.path()));
    weights = std::make_unique<Result<ModelWeights>>(
        checkpoint->ok() ? LoadModelWeights(TinyConfig(), part, options, &**checkpoint)
                         : Result<ModelWeights>(checkpoint->status()));
  }

  bool ok() const { return weights->ok(); }
  void ExpectError(StatusCode code, std::initializer_list<std::string> parts) const {
    ASSERT_FALSE(ok()) << "expected an error naming " << *parts.begin();
    const Status status = weights->status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << part << " in\n"
                                                                << status.message();
    }
    // Which folder, whatever else is wrong.
    EXPECT_NE(status.message().find(dir.path()), std::string::npos) << status.message();
  }

  TempDir dir;
  std::unique_ptr<Result<Checkpoint>> checkpoint;
  std::unique_ptr<Result<ModelWeights>> weights;
};

constexpr StatusCode kMissing = StatusCode::kNotFound;
constexpr StatusCode kDamaged = StatusCode::kDataCorruption;

void Nothing(CheckpointCopy*) {}

TEST(LoadWeightsTest, TheEncoderTakesWhatItRunsAndNothingElse) {
  const Loaded loaded(Nothing, {}, {}, "golden/tiny_fp8fp4", ModelPart::kEncoder);
  ASSERT_TRUE(loaded.ok()) << loaded.weights->status().ToString();
  const ModelWeights& w = **loaded.weights;
  const auto cut = static_cast<size_t>(TinyConfig().decoder_start());
  ASSERT_EQ(w.layers.size(), cut + 1);
  EXPECT_NE(w.layers[cut - 1].block.attention.wq_a.data, nullptr);
  EXPECT_NE(w.layers[cut].compressor.wkv.data, nullptr) << "it publishes";
  EXPECT_TRUE(w.layers[cut].block.moe.experts.empty());
  uint64_t taken = (**loaded.checkpoint).total_bytes();
  for (const std::string_view name : (**loaded.checkpoint).UnconsumedNames()) {
    EXPECT_FALSE(name.starts_with("layers.0.")) << name;
    taken -= (**loaded.checkpoint).Find(name)->bytes().size();
  }
  EXPECT_LT(taken, (**loaded.checkpoint).total_bytes() * 2 / 3);
}

TEST(LoadWeightsTest, AnUnchangedCopyLoadsInBothForms) {
  for (const char* name : {"golden/tiny_fp8fp4", "golden/tiny_bf16"}) {
    const Loaded loaded(Nothing, {.scan_codes = true}, {}, name);
    ASSERT_TRUE(loaded.ok()) << loaded.weights->status().ToString();
    EXPECT_EQ((*loaded.weights)->layers.size(), 8u);
    EXPECT_EQ((*loaded.weights)->dspark.layers.size(), 2u);
  }
}

// One of every kind of tensor.
TEST(LoadWeightsTest, MissingTensorsAreNamed) {
  for (const char* name :
       {"head.weight", "layers.0.ffn_norm.weight", "layers.7.hc_ffn_scale",
        "layers.6.attn.wkv.scale", "layers.4.attn.attn_sink",
        "layers.2.attn.compressor.wgate.weight", "layers.5.attn.indexer.k_norm.weight",
        "layers.7.attn.indexer.wq_b.weight", "layers.3.ffn.gate.bias_vl",
        "layers.1.ffn.experts.7.w3.scale", "layers.4.engram.k_weight", "mtp.0.main_norm.weight",
        "mtp.1.ffn.shared_experts.w2.weight", "mtp.1.confidence_head.proj.weight"}) {
    const Loaded loaded([&](CheckpointCopy* c) { EXPECT_EQ(c->tensors.erase(name), 1u) << name; });
    loaded.ExpectError(kMissing, {'"' + std::string(name) + '"', "missing", "incomplete"});
  }
}

TEST(LoadWeightsTest, WrongShapesNameBothShapes) {
  for (const char* name :
       {"layers.3.attn.q_norm.weight", "layers.0.hc_attn_base", "embed.weight"}) {
    const Loaded loaded([&](CheckpointCopy* c) {
      auto& t = c->At(name);
      t.shape = Shape({1, static_cast<int64_t>(t.bytes.size()) * 8 / DTypeBits(t.dtype)});
    });
    loaded.ExpectError(kDamaged, {name, "expected", "found", "[1, "});
  }
  // Same number of bytes, transposed.
  Loaded([](CheckpointCopy* c) {
    auto& t = c->At("layers.0.attn.wq_a.weight");
    t.shape = Shape({t.shape[1], t.shape[0]});
  }).ExpectError(kDamaged, {"layers.0.attn.wq_a.weight", "[64, 128]", "[128, 64]"});
}

TEST(LoadWeightsTest, WrongDTypesAreNamed) {
  const std::pair<const char*, DType> cases[] = {
      {"layers.0.hc_attn_fn", DType::kI32},
      {"layers.2.ffn.gate.bias_vl", DType::kU32},
      {"norm.weight", DType::kF16},
      {"layers.0.attn.wq_a.weight", DType::kF8E5M2},
      {"layers.0.attn.wq_a.scale", DType::kF8E4M3},
      {"layers.1.engram.embed.weight", DType::kI8},
      {"layers.1.ffn.experts.0.w1.weight", DType::kF8E4M3}};
  for (const auto& [name, dtype] : cases) {
    const Loaded loaded([&, n = name, d = dtype](CheckpointCopy* c) { c->At(n).dtype = d; });
    loaded.ExpectError(kDamaged, {name, "expected", std::string(DTypeName(dtype))});
  }
}

TEST(LoadWeightsTest, ByteLabelsThatSomeWritersUseAreAccepted) {
  const Loaded loaded([](CheckpointCopy* c) {
    for (auto& [name, t] : c->tensors) {
      if (t.dtype == DType::kI8 || t.dtype == DType::kF8E8M0) t.dtype = DType::kU8;
    }
  });
  EXPECT_TRUE(loaded.ok()) << loaded.weights->status().ToString();
}

TEST(LoadWeightsTest, AnyNanScaleIsRefused) {
  for (const char* name : {"layers.0.attn.wq_a.scale", "layers.3.ffn.experts.7.w2.scale",
                           "layers.4.engram.embed.scale", "layers.1.ffn.shared_experts.w3.scale",
                           "mtp.0.main_proj.scale"}) {
    for (const bool last : {false, true}) {
      const Loaded loaded([&](CheckpointCopy* c) {
        auto& bytes = c->At(name).bytes;
        bytes[last ? bytes.size() - 1 : 0] = 0xFF;
      });
      loaded.ExpectError(kDamaged, {std::string(name), "NaN scale", "fetch it again"});
    }
  }
}

TEST(LoadWeightsTest, NanCodesAreFoundWhenAskedFor) {
  for (const char* name : {"layers.7.attn.wo_a.weight", "layers.1.engram.embed.weight"}) {
    for (const uint8_t code : {0x7F, 0xFF}) {
      const auto change = [&](CheckpointCopy* c) { c->At(name).bytes.back() = code; };
      Loaded(change, {.scan_codes = true})
          .ExpectError(kDamaged, {std::string(name), "NaN code", "fetch it again"});
      EXPECT_TRUE(Loaded(change, {.scan_codes = false}).ok());
    }
  }
}

TEST(LoadWeightsTest, ExpertsAreCompleteAndNoMoreThanConfigured) {
  Loaded([](CheckpointCopy* c) {
    EXPECT_EQ(c->Erase("layers.6.ffn.experts.5."), 6u);
  }).ExpectError(kMissing, {"layers.6.ffn.experts.5."});
  const auto add = [](const std::string& from, const std::string& to) {
    return [=](CheckpointCopy* c) { c->tensors[to] = c->At(from); };
  };
  const std::string extra = "layers.6.ffn.experts.8.w1.weight";
  Loaded(add("layers.6.ffn.experts.0.w1.weight", extra))
      .ExpectError(kDamaged, {extra, "config.json"});
  // A name that only looks like an expert's.
  const std::string padded = "layers.6.ffn.experts.07.w1.weight";
  Loaded(add("layers.6.ffn.experts.0.w1.weight", padded))
      .ExpectError(kDamaged, {padded, "config.json"});
}

TEST(LoadWeightsTest, K04_TensorsOfNoConfiguredPartAreRefused) {
  for (const char* name :
       {"layers.0.attn.new.weight", "layers.8.attn_norm.weight", "mtp.2.attn_norm.weight",
        "layers.3.attn.compressor.norm.weight", "layers.6.attn.indexer.weights_proj.weight",
        "layers.5.attn.compressor.wgate.weight", "layers.2.engram.q_weight", "hc_head_fn",
        "layers.0.hc_attn_norm.weight", "mtp.0.norm.weight", "layers.0.ffn.gate.bias_vl2"}) {
    const Loaded loaded([&](CheckpointCopy* c) { c->tensors[name] = c->At("norm.weight"); });
    loaded.ExpectError(kDamaged, {name, "config.json"});
  }
  // A scale beside a weight that is not quantised.
  Loaded(
      [](CheckpointCopy* c) {
        c->tensors["layers.0.attn.wq_a.scale"] = {
            DType::kU8, {2, 4}, std::vector<uint8_t>(8, 127), 0};
      },
      {}, {}, "golden/tiny_bf16")
      .ExpectError(kDamaged, {"layers.0.attn.wq_a.scale"});
}

TEST(LoadWeightsTest, TheVisionPartIsLeftToTheImagePath) {
  const Loaded loaded([](CheckpointCopy* c) {
    for (const char* name : {"vision.patch_embed.weight", "aligner.w1.weight", "image_start",
                             "image_end", "image_newline"}) {
      c->tensors[name] = c->At("norm.weight");
    }
  });
  EXPECT_TRUE(loaded.ok()) << loaded.weights->status().ToString();
}

TEST(LoadWeightsTest, OnlyAnEngramTableMustShareAShardWithItsScales) {
  CheckpointCopy source(TestDataPath("golden/tiny_fp8fp4"));
  const auto move = [](const std::string& name) {
    return [=](CheckpointCopy* c) { c->At(name).shard ^= 1; };
  };
  Loaded(move("layers.1.engram.embed.scale"))
      .ExpectError(kDamaged, {"layers.1.engram.embed.scale", "layers.1.engram.embed.weight",
                              "same shard", "fetch it again"});
  EXPECT_TRUE(Loaded(move("layers.0.attn.wq_a.scale")).ok());
  EXPECT_TRUE(Loaded(move("layers.3.ffn.experts.2.w1.scale")).ok());
}

TEST(LoadWeightsTest, ThePrefixOfOtherExportersIsAccepted) {
  const auto prefix_all = [](CheckpointCopy* c) {
    std::map<std::string, CheckpointCopy::Tensor> renamed;
    for (auto& [name, t] : c->tensors) renamed["model." + name] = std::move(t);
    c->tensors = std::move(renamed);
  };
  EXPECT_TRUE(Loaded(prefix_all).ok());
  Loaded([](CheckpointCopy* c) {
    c->tensors["model.norm.weight"] = c->At("norm.weight");
  }).ExpectError(kDamaged, {"norm.weight"});
}

TEST(LoadWeightsTest, DamagedFilesAreNamed) {
  const std::string shard = CheckpointCopy::ShardName(1);
  const auto resize = [&](int64_t change) {
    return [=](const TempDir& dir) {
      const auto size = static_cast<int64_t>(std::filesystem::file_size(dir.File(shard)));
      std::filesystem::resize_file(dir.File(shard),
                                   static_cast<uintmax_t>(change < 0 ? size + change : change));
    };
  };
  for (const int64_t change : {int64_t{-1}, int64_t{-4096}, int64_t{100}, int64_t{3}, int64_t{0}}) {
    Loaded(Nothing, {}, resize(change)).ExpectError(kDamaged, {shard});
  }
  Loaded(Nothing, {}, [&](const TempDir& dir) {
    std::filesystem::remove(dir.File(shard));
  }).ExpectError(kMissing, {shard, "finish the download"});
  Loaded(Nothing, {}, [&](const TempDir& dir) {
    std::filesystem::remove(dir.File("model.safetensors.index.json"));
  }).ExpectError(kMissing, {"index"});
  Loaded(Nothing, {}, [&](const TempDir& dir) {
    dir.Write("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
  }).ExpectError(kDamaged, {"model.safetensors.index.json"});
}

}  // namespace
}  // namespace deepinfer
