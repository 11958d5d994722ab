// From the logits of an item's rows to the tokens it decides: verification of its drafts, the token
// behind them, those a grammar leaves no choice about, the reports on each (dspark.md §4).
// Thread rule: step thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "engine/ending.h"
#include "engine/step_job.h"

namespace deepinfer {

// What decisions of one step share.
struct DecisionContext {
  EndRule rule;
  const Clock* clock = nullptr;
  SamplerScratch scratch;
  int64_t grammar_us = 0;  // time of masks and forced tokens in this step
};

// What a sampler needs to know about the token at `position`, behind the decided tokens and
// `pending` ones. logits f32 [vocab] may be the target's or the draft model's: both are processed
// alike. The one place where a position gets its constraints. Valid until the next call for the
// sequence. invalid_request if its grammar does not allow pending; internal if the grammar fails.
Result<SampleRow> PendingRow(Sequence& sequence, std::span<float> logits, int64_t position,
                             std::span<const int32_t> pending, DecisionContext* context);

// Fills tokens and num_accepted of the item and appends the tokens to its sequence, not beyond the
// one that ends it. logits f32 [1 + num_verified, vocab], maxima as in StepOutput. With an error no
// token was decided; one behind tokens that were decided is found again by the next step.
Status DecideTokens(StepItem* item, std::span<float> logits, std::span<const float> maxima,
                    DecisionContext* context);

}  // namespace deepinfer
