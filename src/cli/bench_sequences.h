// Sequences with caches for benchmarks of model steps: memory for some tokens of context, filled
// with valid random rows through the operators, so that a long context costs no prefill.
// Thread rule: one owner, which also runs the steps. Owner of the pages and state slots.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace deepinfer {

class BenchSequences {
 public:
  // num_sequences sequences of at most num_tokens tokens, with random ids. The model is borrowed
  // and outlives them. resource_exhausted when their memory is not to be had.
  static Result<std::unique_ptr<BenchSequences>> Create(Model* model, int32_t num_sequences,
                                                        int32_t num_tokens);
  ~BenchSequences();
  BenchSequences(const BenchSequences&) = delete;
  BenchSequences& operator=(const BenchSequences&) = delete;

  int32_t num_sequences() const { return static_cast<int32_t>(tables_.size()); }
  int64_t memory_bytes() const { return pool_bytes_ + slot_bytes_; }

  // Writes the caches of `context` tokens: window rows, compressed entries, index keys and the
  // compressor's rows.
  Status FillCaches(int32_t context);

  // Runs the first sequence's first `prompt` tokens, `chunk` rows a step, as the engine does: the
  // decoder on the last rows only, logits of the last row. model: the one of Create or an equal
  // one.
  Status Prefill(Model* model, int32_t prompt, int32_t chunk) const;

  // Runs num_steps steps of one row for each of the first `batch` sequences, from position start.
  Status Decode(Model* model, int32_t batch, int32_t start, int32_t num_steps) const;

 private:
  explicit BenchSequences(Model* model) : model_(model) {}
  void FillPages(int32_t context, const float* rows, int64_t num_rows);
  void FillSlot(const std::vector<float>& host_rows, const float* rows);
  // One step for each of the first `batch` sequences: rows [start, start + num_rows), cold, all
  // layers, no logits.
  std::vector<SequenceStep> Steps(int32_t batch, int32_t start, int32_t num_rows) const;

  Model* model_;
  int64_t pool_bytes_ = 0;
  int64_t slot_bytes_ = 0;
  int64_t num_blocks_ = 0;  // of one sequence
  std::byte* pool_ = nullptr;
  std::byte* slots_ = nullptr;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<int32_t>> tokens_;
};

}  // namespace deepinfer
