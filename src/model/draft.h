// The draft model's part of a step: what it reads from the target model and what it proposes
// (dspark.md §2, §3).
// Thread rule: plain values that borrow memory for one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace deepinfer {

// Hidden rows of committed positions [start, start + num_rows), to be kept in the draft rings.
struct DraftContext {
  const float* main_hidden = nullptr;  // f32 [num_rows, targets·dim], StepOutput::main_hidden
  int32_t start = 0;
  int32_t num_rows = 0;
  std::byte* slot = nullptr;  // state slot, KvLayout::slot_bytes
};

// One sequence to draft for.
struct DraftSequence {
  int32_t anchor = 0;    // the last sampled token, which the target has not seen yet
  int32_t position = 0;  // of the anchor: the number of committed positions
  // Lowest position whose row the draft rings hold. Fewer rows cost acceptance, never correctness.
  int32_t ring_from = 0;
  std::byte* slot = nullptr;
};

// Rows of the parallel part: row k of a sequence is about the token at position + 1 + k.
// Reused between passes, it keeps its memory.
struct DraftRows {
  int32_t num_drafts = 0;      // rows of a sequence
  std::vector<float> logits;   // f32 [sequences, num_drafts, vocab], without the Markov bias
  std::vector<float> hidden;   // f32 [sequences, num_drafts, dim], not normed
  std::vector<Status> status;  // per sequence: data_corruption when a finite check failed
};

// Row k of every sequence with what the previous token adds.
struct DraftProposal {
  std::vector<float> logits;      // f32 [sequences, vocab]
  std::vector<float> confidence;  // f32 [sequences], raw logits of the acceptance estimate
};

}  // namespace deepinfer
