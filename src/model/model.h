// A loaded V4.1 text model and its forward step.
// Thread rule: Step is called by one thread at a time; const methods from any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/kv_layout.h"
#include "model/numerics.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

struct ModelOptions {
  Numerics numerics = Numerics::kProd;
  ProdDeviations prod_deviations;  // off only in tests
  // Off only in tests: caches keep fp32 rows (numerics.md §2, f32_nokvq).
  KvFormat kv_format = KvFormat::kQuantized;
  // Positions the RoPE tables cover; clipped to the model's maximum.
  int32_t max_positions = 32768;
  WeightCheckOptions weight_checks;
  // Of a part only its weights are read; a step must have no decoder row (SequenceStep::cut_out).
  ModelPart part = ModelPart::kWhole;
  // Called while weight pages are read in; empty: they are read on first use. Checkpoints larger
  // than half of the memory are never read ahead.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_progress;
};

class Model {
 public:
  // Loads DIR. engram_token_map: class of every token id, from the tokenizer (model.md §10.1);
  // may be empty for a model without Engram. ops is borrowed and must outlive the model.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& dir,
                                             std::vector<int32_t> engram_token_map,
                                             const ModelOptions& options, Operators* ops);

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const KvLayout& layout() const { return layout_; }
  const ModelWeights& weights() const { return weights_; }
  const EngramHasher& engram_hasher() const { return hasher_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  Operators* ops() const { return ops_; }
  int32_t max_positions() const { return max_positions_; }
  int64_t workspace_bytes() const { return workspace_.capacity_bytes(); }
  std::string numerics_id() const {
    return NumericsId(options_.numerics, options_.prod_deviations, ops_->family_id());
  }

  // Runs the rows and updates pages and slots. Preconditions (the engine's duty): positions below
  // max_positions, ids in range, pages present. resource_exhausted when scratch memory is not to
  // be had; pages and slots of the step are then undefined. Statuses of single sequences are in
  // the output.
  Status Step(std::span<const SequenceStep> sequences, bool want_main_hidden, StepOutput* out,
              StepProbe* probe = nullptr);

 private:
  Model(Checkpoint checkpoint, const ModelOptions& options, Operators* ops)
      : options_(options), ops_(ops), checkpoint_(std::move(checkpoint)), workspace_(ops) {}

  ModelOptions options_;
  Operators* ops_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  ModelWeights weights_;
  KvLayout layout_;
  EngramHasher hasher_;
  int32_t max_positions_ = 0;
  std::unique_ptr<RopeTables> rope_;
  Workspace workspace_;
};

}  // namespace deepinfer
