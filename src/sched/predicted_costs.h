// What work costs on one engine, as its step time model predicts it (docs/cluster.md §4).
// Thread rule: values.
#pragma once

#include <cstdint>

namespace deepinfer {

// Microseconds; 0: unknown.
struct PredictedCosts {
  double prompt_us_per_token = 0;
  double prompt_us_per_square = 0;  // times the square of its tokens
  double step_us = 0;               // of a decode step, without its rows
  double step_us_per_row = 0;
  double step_us_per_token = 0;  // of the context of all rows
  double error = 0;              // mean of the relative errors of recent predictions
  double queued_us = 0;          // of prompts that wait or are unfinished

  // Of a prompt of so many tokens.
  double PromptUs(double num_tokens) const {
    return num_tokens * (prompt_us_per_token + num_tokens * prompt_us_per_square);
  }
};

struct CostModel;

// For prompts that run `chunk_rows` rows a step, and a context of at most max_context; without
// `queued_us`. All 0 while the model has not learned anything.
PredictedCosts PredictCosts(const CostModel& model, int32_t chunk_rows, int32_t max_context);

}  // namespace deepinfer
