// The tiny golden model with one backend, and a sequence that owns its pages and state slot.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "kernels/backends.h"
#include "model/model.h"

namespace deepinfer {

struct TinyModelOptions {
  std::string checkpoint = "tiny_fp8fp4";  // a golden one, or the absolute path of another
  Numerics numerics = Numerics::kRef;
  KvFormat kv_format = KvFormat::kQuantized;
  // 0: reference operators. Else CPU operators on that many threads; they give the same bits, which
  // backend_test checks, many times faster.
  int threads = 0;
  IsaLevel isa = DetectIsaLevel();
  ProdDeviations prod_deviations = {};
  ModelPart part = ModelPart::kWhole;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options) {
    if (options.threads == 0) {
      ops_ = MakeReferenceOperators();
    } else {
      pool_ = std::make_unique<ThreadPool>(options.threads);
      Result<std::unique_ptr<Operators>> ops = MakeCpuOperators(options.isa, pool_.get());
      if (!ops.ok()) ADD_FAILURE() << ops.status().ToString();
      ops_ = *std::move(ops);
    }
    ModelOptions model_options;
    model_options.numerics = options.numerics;
    model_options.prod_deviations = options.prod_deviations;
    model_options.kv_format = options.kv_format;
    model_options.part = options.part;
    const bool is_path = options.checkpoint.starts_with('/');
    Result<std::unique_ptr<Model>> model = Model::Load(
        is_path ? options.checkpoint : GoldenPath(options.checkpoint),
        GoldenFile("engram_constants").Ints("tiny.token_map"), model_options, ops_.get());
    if (!model.ok()) ADD_FAILURE() << model.status().ToString();
    model_ = *std::move(model);
  }

  Model& operator*() { return *model_; }
  Model* operator->() { return model_.get(); }
  Model* get() { return model_.get(); }

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Operators> ops_;
  std::unique_ptr<Model> model_;
};

// Decoder tail of the tests: the smallest the window allows, so that short prompts exercise it
// (numerics.md §4.5).
inline int32_t TestKeepRows(const Model& model) { return model.config().window + 12; }

// State of one sequence: tokens, pages in shuffled order, slot filled with garbage.
class TestSequence {
 public:
  TestSequence(Model* model, std::vector<int32_t> tokens, uint32_t seed = 1)
      : model_(model), tokens_(std::move(tokens)) {
    const KvLayout& layout = model->layout();
    const size_t blocks =
        static_cast<size_t>(KvLayout::NumBlocks(static_cast<int64_t>(tokens_.size()) + 64));
    table_.resize(blocks);
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 rng(seed);
    std::shuffle(table_.begin(), table_.end(), rng);
    // Validity must come from positions alone, so start from noise (model.md §12).
    Fill(&pool_, blocks * static_cast<size_t>(layout.block_bytes), &rng);
    Fill(&slot_, static_cast<size_t>(layout.slot_bytes), &rng);
  }

  void set_image_flags(std::vector<uint8_t> flags) { is_image_ = std::move(flags); }
  std::vector<int32_t>& tokens() { return tokens_; }

  // Rows [start, start + n) with every row's logits; full decoder.
  SequenceStep Rows(int32_t start, int32_t n) {
    SequenceStep s;
    s.tokens = tokens_.data();
    s.is_image = is_image_.empty() ? nullptr : is_image_.data();
    s.start = start;
    s.num_rows = n;
    s.block_table = table_.data();
    s.pool = pool_.data();
    s.slot = slot_.data();
    return s;
  }

  // Runs the given chunk lengths from position 0; logits of all rows, f32 [sum, vocab].
  std::vector<float> RunChunks(const std::vector<int32_t>& chunks, StepProbe* probe = nullptr) {
    std::vector<float> logits;
    int32_t start = 0;
    for (int32_t n : chunks) {
      const SequenceStep step = Rows(start, n);
      StepOutput out;
      const Status status = model_->Step({&step, 1}, false, &out, probe);
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_TRUE(out.status[0].ok()) << out.status[0].ToString();
      logits.insert(logits.end(), out.logits.begin(), out.logits.end());
      start += n;
    }
    return logits;
  }

  // Overwrites the state slot, as when only global KV survived.
  void LoseState() {
    std::mt19937 rng(99);
    Fill(&slot_, slot_.size(), &rng);
  }

  // As when it was handed over; both were made with the same seed.
  void TakeStateOf(const TestSequence& other) {
    pool_ = other.pool_;
    slot_ = other.slot_;
  }

  const std::vector<std::byte>& pool() const { return pool_; }
  std::vector<std::byte>& slot() { return slot_; }

 private:
  static void Fill(std::vector<std::byte>* v, size_t size, std::mt19937* rng) {
    v->resize(size);
    for (std::byte& b : *v) b = static_cast<std::byte>((*rng)());
  }

  Model* model_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> is_image_;
  std::vector<int32_t> table_;
  std::vector<std::byte> pool_;
  std::vector<std::byte> slot_;
};

}  // namespace deepinfer
