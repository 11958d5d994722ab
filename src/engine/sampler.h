// Chooses the next token of one sequence from its logits (numerics.md §5.2): bans, penalties, bias,
// temperature, filters, draw; and the log-probabilities reported with it.
// Thread rule: one caller at a time; different samplers with scratch of their own run in parallel.
// Owner: Sequence.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/distribution.h"
#include "engine/request.h"

namespace deepinfer {

// Buffers of one thread that samples; reused between rows.
struct SamplerScratch {
  DistributionScratch distribution;
  Survivors survivors;
  std::vector<float> row;                          // a row with few allowed ids
  std::vector<std::pair<int32_t, float>> changes;  // logits before the sparse edits
};

// One row of logits to decide a token from.
struct SampleRow {
  // f32 [vocab]. Edited during the call, restored before it returns: a copy of the row would cost
  // more than the rest of a greedy choice.
  std::span<float> logits;
  // Operators::BlockMaxima of the logits; empty: not known.
  std::span<const float> maxima = {};
  int64_t position = 0;              // absolute position of the token to decide
  std::span<const int32_t> pending;  // tokens assumed after the committed ones (drafts)
  // Bit id % 32 of word id / 32 is set for a legal token; ids behind its end are illegal. Empty:
  // all are legal. Where it leaves only tokens that end the output, min_tokens does not ban them.
  std::span<const uint32_t> mask = {};
  int32_t forced_id = -1;  // reported instead of a drawn token
};

struct SampledToken {
  int32_t id = -1;
  TokenLogprobs logprobs;  // filled when the request asks for any
};

class Sampler {
 public:
  // prompt_ids are read for the repetition penalty only. end_id is the model's end token; image_id
  // stands for image patches in prompts and is never sampled (-1: none).
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int32_t end_id,
          int32_t image_id);

  // invalid_request when bans leave no token or penalties overflow; data_corruption when a logit
  // is NaN or +inf.
  Result<SampledToken> Sample(const SampleRow& row, SamplerScratch* scratch) const;

  // Whether the parameters ban a token that is the only one the mask of the next row leaves.
  bool BansOnlyChoice(int32_t id) const;
  // How drafts are verified (dspark.md §4): temperature 0 and strict requests compare tokens,
  // others distributions.
  bool verifies_by_equality() const { return greedy_ || strict_; }

  // The processed distribution of a row, for requests that verify by rejection. Errors of Sample.
  Status Process(const SampleRow& row, SamplerScratch* scratch, Survivors* out) const;

  // Draft k (from 1) out of a row of the draft model: as Sample chooses by equality, else drawn
  // from the processed distribution, which q then holds. Errors of Sample.
  Result<int32_t> Draft(const SampleRow& row, int32_t k, SamplerScratch* scratch,
                        Survivors* q) const;

  // Counts a token as part of the output; called for every emitted token, in order.
  void Commit(int32_t id);

 private:
  class EditedRow;

  // Edits the row and looks at what is left of it. Errors of Sample.
  Result<RowSummary> Prepare(const SampleRow& in, EditedRow* row) const;
  void Edit(const SampleRow& in, EditedRow* row) const;
  // Calls ban(id) for every id the parameters ban behind the committed and pending tokens.
  template <typename BanId>
  void ForEachBan(std::span<const int32_t> pending, bool may_ban_ends, BanId ban) const;
  bool Ends(int32_t id) const;
  // Whether the mask leaves nothing but tokens that end the output.
  bool LeavesOnlyEnds(std::span<const uint32_t> mask) const;
  void ApplyPenalties(std::span<const int32_t> pending, EditedRow* row) const;
  int32_t Draw(const LogitRow& row, uint64_t position, SamplerScratch* scratch) const;
  // What the request asks to know about the id: from the row as the model gave it, and as edited.
  void ReportRaw(std::span<const float> logits, int32_t id, SamplerScratch* scratch,
                 TokenLogprobs* out) const;
  void ReportEdited(std::span<const float> logits, const RowSummary& summary, int32_t id,
                    SamplerScratch* scratch, TokenLogprobs* out) const;
  FilterParams filters() const { return {params_.top_k, params_.top_p, params_.min_p}; }

  const SamplingParams params_;
  int32_t end_id_;
  int32_t image_id_;
  bool greedy_;
  bool strict_;
  bool has_penalties_;
  int64_t num_committed_ = 0;
  std::unordered_map<int32_t, int32_t> output_counts_;
  std::vector<int32_t> prompt_ids_;   // distinct, ascending; only with a repetition penalty
  std::vector<int32_t> output_tail_;  // as long as the longest banned sequence needs
  size_t tail_length_ = 0;
};

// Log-softmax of logits at temperature 1: the chosen id and the num_top best, in rank order.
// Sums in fp64 in Lane16 order (numerics.md §5.6). Precondition: no logit is NaN or +inf and one is
// finite.
TokenLogprobs RawLogprobs(std::span<const float> logits, int32_t id, int32_t num_top);

}  // namespace deepinfer
