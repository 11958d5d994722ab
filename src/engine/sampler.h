// Chooses the next token of one sequence from its logits (numerics.md §5.2): bans, penalties, bias,
// temperature, filters, draw; and the log-probabilities reported with it.
// Thread rule: step thread; one per sequence.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace deepinfer {

class Sampler {
 public:
  // prompt_ids are read for the repetition penalty only. end_id is the model's end token; image_id
  // stands for image patches in prompts and is never sampled (-1: none).
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int32_t end_id,
          int32_t image_id);

  // The token decided at the absolute position from raw logits f32 [vocab]. invalid_request when
  // bans leave no token or penalties overflow; data_corruption when a logit is NaN or +inf.
  Result<int32_t> Sample(std::span<const float> logits, int64_t position);

  // Counts a token as part of the output; called for every emitted token, in order.
  void Commit(int32_t id);

 private:
  void ApplyPenalties(std::vector<float>* z) const;
  void Ban(std::vector<float>* z) const;

  const SamplingParams params_;
  int32_t end_id_;
  int32_t image_id_;
  bool strict_;
  bool has_penalties_;
  int64_t num_committed_ = 0;
  std::unordered_map<int32_t, int32_t> output_counts_;
  std::vector<int32_t> prompt_ids_;  // distinct, ascending; only with a repetition penalty
};

// Log-softmax of raw logits at temperature 1: the chosen id and the num_top best, in rank order.
// Sums in fp64 in Lane16 order (numerics.md §5.6).
TokenLogprobs RawLogprobs(std::span<const float> logits, int32_t id, int32_t num_top);

}  // namespace deepinfer
