// The draft model as a list of operators over a batch of sequences (dspark.md §2, §3). Internal to
// model/.
//
// Shapes: T rows = block_size rows of every sequence, sequences in order.
// Thread rule: lives inside one call of DraftModel on the step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/draft.h"
#include "model/draft_markov_rows.h"
#include "model/step_runner.h"

namespace deepinfer {

class DraftRunner {
 public:
  explicit DraftRunner(const StepContext& context);

  // Writes the ring rows of committed positions.
  void Inject(std::span<const DraftContext> contexts);

  // The parallel part, with logits for the first num_drafts rows of each block.
  void Run(std::span<const DraftSequence> sequences, int32_t num_drafts, DraftRows* out);

  // The sequential part for row k: previous[s] is the token before it, the anchor for k = 0.
  void Propose(const DraftRows& rows, int32_t k, std::span<const int32_t> previous,
               DraftMarkovRows* markov, DraftProposal* out);

 private:
  void Embed(std::span<const DraftSequence> sequences);
  // Of f32 [T, dim] the first num_drafts rows of each block, [sequences, num_drafts, dim].
  float* LeadingRows(const float* x, int64_t num_sequences, int64_t num_drafts);
  // Calls use(s, row f32 [vocab]) with what the Markov head adds behind previous[s], for every s.
  // embedding f32 [previous, rank].
  template <typename Use>
  void ForEachMarkovRow(std::span<const int32_t> previous, const float* embedding,
                        DraftMarkovRows* markov, const Use& use);
  void RunLayer(int32_t layer, std::span<const DraftSequence> sequences);
  void RunAttention(int32_t layer, std::span<const DraftSequence> sequences, const float* u,
                    float* out);
  void RunMoe(int32_t layer, const float* u, float* out);
  // Window rows in their stored form, from kv f32 [num_rows, head_dim] = wkv · input; kv is
  // overwritten.
  std::byte* WindowRowsOf(int32_t layer, float* kv, int64_t num_rows, const int32_t* positions);

  const BlockWeights& Weights(int32_t layer) const {
    return context_.weights->dspark.layers[static_cast<size_t>(layer)];
  }
  Rounding stream() const { return context_.arithmetic.stream; }
  HcShape Hc() const;
  std::byte* Ring(std::byte* slot, int32_t layer) const {
    return context_.layout->Ring(slot, config_.num_layers + layer);
  }
  float* Floats(int64_t n) { return context_.workspace->Array<float>(n); }
  int32_t* DevicePositions(const std::vector<int32_t>& positions);

  StepContext context_;
  Operators* ops_;
  const ModelConfig& config_;
  const LinearRunner linears_;
  int64_t num_rows_ = 0;
  int32_t* positions_ = nullptr;  // [T]
  uint8_t* is_image_ = nullptr;   // [T], all zero: drafts are text
  float* h_ = nullptr;            // [T, hc, dim]
  float* h_next_ = nullptr;       // [T, hc, dim]
  float* pre_ = nullptr;          // [T, hc]
};

}  // namespace deepinfer
