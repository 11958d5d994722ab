// What work costs on one engine, as its step time model predicts it (docs/cluster.md §4).
// Thread rule: values.
#pragma once

#include <cstdint>

namespace deepinfer {

// What the persistent cache holds of a prompt.
struct StoredPrefix {
  int32_t own_tokens = 0;   // written by the worker that was asked
  int32_t peer_tokens = 0;  // by others that share the cache
  int32_t first_row = 0;    // to run after a load; 0: a load saves nothing

  int32_t tokens() const { return own_tokens + peer_tokens; }
};

struct PromptWork {
  int64_t tokens = 0;
  StoredPrefix stored{};
};

// Prompts that wait or are unfinished.
struct PromptBacklog {
  int64_t prompts = 0;
  int64_t tokens = 0;   // rows that are left
  int64_t squares = 0;  // Σ rows that are left of a prompt times its tokens
};

// Microseconds; 0: unknown.
struct PredictedCosts {
  // Of a prompt: each of its steps, each row, the square of its tokens, and each of its last rows,
  // which run the decoder too.
  double prompt_us_per_step = 0;
  double prompt_us_per_token = 0;
  double prompt_us_per_square = 0;
  double tail_us_per_row = 0;
  // How the rows of a prompt make steps.
  int64_t chunk_rows = 0;     // of a step at most; 0: one step for all
  int64_t tail_rows = 0;      // that run the decoder too
  bool cuts_at_tail = false;  // a step ends at the last block edge before these
  // Of blocks from the persistent cache.
  double load_us = 0;
  double load_us_per_token = 0;
  double step_us = 0;  // of a decode step, without its rows
  double step_us_per_row = 0;
  double step_us_per_token = 0;  // of the context of all rows
  double error = 0;              // mean of the relative errors of recent predictions
  double queued_us = 0;          // of prompts that wait or are unfinished

  // What is stored of the prompt is loaded where that is quicker.
  double PromptUs(const PromptWork& prompt) const;
  double BacklogUs(const PromptBacklog& backlog) const;

 private:
  int64_t NumSteps(int64_t first, int64_t end) const;
  double RowsUs(int64_t first, int64_t end) const;
};

struct CostModel;

// How an engine makes steps of its prompts.
struct PromptSteps {
  int32_t chunk_rows = 0;
  int32_t tail_rows = 0;
  bool cuts_at_tail = false;
  int32_t max_context = 0;
};

// Without loads and queue. All 0 while the model has not learned anything.
PredictedCosts PredictCosts(const CostModel& model, const PromptSteps& steps);

}  // namespace deepinfer
