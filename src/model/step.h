// One forward step: runs of rows of any number of sequences, each at absolute positions, with
// their caches (model.md §13).
// Thread rule: plain values that borrow memory for one Model::Step call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

// Rows [start, start + num_rows) of one sequence.
struct SequenceStep {
  const int32_t* tokens = nullptr;    // ids by absolute position, at least start + num_rows
  const uint8_t* is_image = nullptr;  // flags by absolute position; nullptr: all text
  int32_t start = 0;
  int32_t num_rows = 0;
  // Lowest position whose window row may be read: v of model.md §13.2; 0 for a cold run.
  int32_t window_floor = 0;
  // Rows before it write no global KV: the hit length H; 0 for a cold run.
  int32_t write_from = 0;
  // Rows from here on run the decoder layers, which read no window row below decoder_origin
  // (K0). compact: both K0; mask: 0 and K0; full: both 0 (model.md §13.1).
  int32_t decoder_from = 0;
  int32_t decoder_origin = 0;
  // Rows from here on yield logits; they must run the decoder.
  int32_t logits_from = 0;

  // A split at the cut between two engines (model.md §13.1). Rows at the cut are f32
  // [decoder rows, hc_mult·dim + hc_mult]: h, then pre. cut_out: they go there instead of through
  // the decoder. cut_in: they come from there, with start >= decoder_from, and the layers below,
  // global KV included, have run already.
  float* cut_out = nullptr;
  const float* cut_in = nullptr;

  const int32_t* block_table = nullptr;  // pages for every position below start + num_rows
  std::byte* pool = nullptr;             // base of the pages
  std::byte* slot = nullptr;             // state slot, KvLayout::slot_bytes
};

struct StepOutput {
  // f32 [sum of logit rows, vocab], sequences in order.
  std::vector<float> logits;
  // f32 [sum of logit rows, NumMaxima(vocab)]: Operators::BlockMaxima of the logits.
  std::vector<float> logit_maxima;
  // f32 [sum of decoder rows, targets·dim]: DSpark's record, when asked for.
  std::vector<float> main_hidden;
  // [layers, experts]: rows that the router sent to each.
  std::vector<int32_t> expert_rows;
  // Per sequence: data_corruption when a finite check failed; its other outputs are then void.
  std::vector<Status> status;
};

// Sees, and in tests may replace, intermediate values of a step. Names are those of the golden
// files ("h_in", "attn_out", "latent", ...); all arrays are copies in host memory.
class StepProbe {
 public:
  virtual ~StepProbe() = default;
  // data f32 [rows, cols].
  virtual void Visit(std::string_view name, int32_t layer, float* data, int64_t rows,
                     int64_t cols) = 0;
  // indices i32 [rows, width]; counts i32 [rows], or nullptr where every row holds width indices.
  virtual void VisitSelection(std::string_view name, int32_t layer, int32_t* indices,
                              int32_t* counts, int64_t rows, int64_t width) = 0;
};

}  // namespace deepinfer
