// The draft model of a loaded model (dspark.md §2, §3).
// Thread rule: called by the step thread, never during a step of the model.
// Owner: whoever owns the model, which outlives this object.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "model/draft.h"
#include "model/draft_markov_rows.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/workspace.h"

namespace deepinfer {

class DraftModel {
 public:
  // Precondition: the configuration has draft layers.
  explicit DraftModel(const Model& model);

  // Preconditions of all: positions, of a whole block for Draft, below the model's max_positions.
  // Error of all: resource_exhausted when scratch memory is not to be had.

  // Keeps hidden rows of committed positions in the draft rings of their sequences.
  Status InjectContext(std::span<const DraftContext> contexts);

  // The parallel part of a draft pass. num_drafts: rows of a block that Propose will ask for, 1 to
  // the block size; no logits are computed for the others.
  Status Draft(std::span<const DraftSequence> sequences, int32_t num_drafts, DraftRows* out);

  // The sequential part: row k of `rows` with what previous[s], the token before the one it is
  // about, adds; the anchor for k = 0.
  Status Propose(const DraftRows& rows, int32_t k, std::span<const int32_t> previous,
                 DraftProposal* out);

 private:
  // Runs `work` with scratch memory of its own.
  template <typename Work>
  Status WithScratch(const Work& work);

  const Model& model_;
  const RopeTables rope_;
  Workspace workspace_;
  DraftMarkovRows markov_rows_;
};

}  // namespace deepinfer
