// One forward step as a list of operators over a batch of rows. Internal to model/.
//
// Shapes: T rows of all sequences, concatenated. From the encoder/decoder cut on, T counts the
// decoder rows only; they are the last rows of each sequence.
// Thread rule: lives inside one Model::Step call on the step thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/engram_hash.h"
#include "model/kv_layout.h"
#include "model/linear_runner.h"
#include "model/numerics.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

struct StepContext {
  Operators* ops;
  const ModelConfig* config;
  const ModelWeights* weights;
  const KvLayout* layout;
  const EngramHasher* hasher;
  const RopeTables* rope;
  Arithmetic arithmetic;
  Workspace* workspace;
};

class StepRunner {
 public:
  StepRunner(const StepContext& context, std::span<const SequenceStep> sequences,
             bool want_main_hidden, StepProbe* probe);

  void Run(StepOutput* out);

 private:
  // Rows of one sequence inside the batch; shrinks to the decoder rows at the cut.
  struct RowRun {
    const SequenceStep* sequence;
    int64_t first_row;
    int64_t num_rows;
    int32_t start;  // position of first_row
    Status status;
  };

  // Selections of one index source, device memory.
  struct Selection {
    int32_t* indices = nullptr;  // [T, width]
    int32_t* counts = nullptr;   // [T]
    int32_t width = 0;
  };

  // step_runner.cc
  void Embed();
  void RunLayer(int32_t layer);
  // u_ = RMSNorm(hc_pre(h_, pre_)).
  void AttentionInput(int32_t layer);
  // From here on the batch is the decoder rows, which may come from or leave to another engine.
  void KeepDecoderRows(int32_t layer);
  void SendCutRows(const RowRun& run);
  void InsertCutRows();
  // Rows of the run that run the decoder, as an offset into its rows.
  static int64_t NumEncoderRows(const RowRun& run);
  // Rows of the run that yield logits: its last ones.
  static int64_t NumLogitRows(const RowRun& run);
  Selection NewSelection(int32_t width);
  void RunHead(StepOutput* out);
  // Logits of y f32 [num_rows, dim].
  void ComputeLogits(const float* y, int64_t num_rows, StepOutput* out);
  void RecordTarget(int32_t layer);
  static Status NotFinite(std::string_view what);
  void CheckFinite(const float* x, int64_t cols, std::string_view what);
  void Probe(std::string_view name, int32_t layer, float* data, int64_t rows, int64_t cols);
  // counts may be nullptr: every row holds width indices.
  void ProbeSelection(std::string_view name, int32_t layer, int32_t* indices, int32_t* counts,
                      int64_t rows, int64_t width);

  // step_attention.cc
  // out f32 [T, dim], from u_; so RunMoe.
  void RunAttention(int32_t layer, float* out);
  void StoreRings(int32_t layer, const std::byte* step_rows);
  // Fills attention_rows_.
  void SetAttentionRows(int32_t layer, const std::byte* step_rows);

  // step_compressor.cc
  void PublishEntries(int32_t layer);
  void PublishPairs(int32_t layer);
  void PublishSingles(int32_t layer);
  // Latents f32 [n, head_dim] of entries first.., one group per sequence.
  struct EntryGroup {
    const RowRun* run;
    int64_t first_entry;
    int64_t first_row;
    int64_t count;
  };
  void StoreEntries(int32_t layer, float* latents, const std::vector<EntryGroup>& groups,
                    int64_t num_entries);

  // step_indexer.cc
  // q f32 [T, index heads · index_head_dim]: the queries before rotation; overwritten.
  void RunIndexer(int32_t layer, float* q);
  // Fills index_rows_.
  void SetIndexRows(int32_t layer);
  void ScoreAndSelect(int32_t layer, std::span<const IndexRow> rows, const float* q, const float* w,
                      int64_t first_row);
  // scores f32 [num_rows, stride] of batch rows first_row...
  void CheckScores(const float* scores, int64_t stride, int64_t first_row, int64_t num_rows);

  // step_ffn.cc
  void RunMoe(int32_t layer, float* out);
  // experts i32 [T, topk], device memory.
  void CountExpertRows(int32_t layer, const int32_t* experts);
  void RunEngram(int32_t layer);
  ActivationRows EngramRows(const EngramWeights& w, const int64_t* ids);

  const LayerWeights& Weights(int32_t layer) const {
    return context_.weights->layers[static_cast<size_t>(layer)];
  }
  RopeTable Rope(int32_t layer) const {
    return context_.config->ratio(layer) == 0 ? context_.rope->plain()
                                              : context_.rope->compressed();
  }
  Rounding stream() const { return context_.arithmetic.stream; }
  HcShape Hc() const;
  // Columns of main_hidden_.
  int64_t TargetsWidth() const {
    return static_cast<int64_t>(config_.dspark.target_layer_ids.size()) * config_.dim;
  }
  float* Floats(int64_t n) { return context_.workspace->Array<float>(n); }

  StepContext context_;
  Operators* ops_;
  const ModelConfig& config_;
  const LinearRunner linears_;
  StepProbe* probe_;
  bool want_main_hidden_;

  std::vector<RowRun> runs_;
  int64_t num_rows_ = 0;
  int64_t most_rows_ = 0;  // of both halves: the room of all arrays of rows
  bool in_decoder_ = false;
  int32_t* positions_ = nullptr;       // [T]
  uint8_t* is_image_ = nullptr;        // [T]
  float* h_ = nullptr;                 // [T, hc, dim]
  float* h_next_ = nullptr;            // [T, hc, dim]
  float* pre_ = nullptr;               // [T, hc]
  float* u_ = nullptr;                 // [T, dim], input of the attention, then of the experts
  float* main_hidden_ = nullptr;       // [T, targets·dim]
  std::vector<Selection> selections_;  // by index source
  Selection candidates_;
  std::vector<int32_t> experts_;              // of the layer being run, host memory
  int32_t* expert_rows_ = nullptr;            // StepOutput::expert_rows
  std::vector<AttentionRow> attention_rows_;  // of the layer being run
  std::vector<IndexRow> index_rows_;
};

}  // namespace deepinfer
