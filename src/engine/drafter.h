// Drafts inside a step: made for its decode items before their rows run, kept up with the committed
// positions after it (dspark.md §2, §3, §6).
// Thread rule: step thread. Owner: StepExecutor.
#pragma once

#include <cstdint>
#include <span>

#include "engine/options.h"
#include "engine/step_job.h"
#include "engine/token_decision.h"
#include "model/draft_model.h"
#include "model/model.h"

namespace deepinfer {

class Drafter {
 public:
  // model is borrowed. Precondition: it has a draft model.
  Drafter(const Model& model, const SpeculationOptions& options);

  // Most drafts of a step, by the model and the options.
  static int32_t MaxDrafts(const ModelConfig& config, const SpeculationOptions& options);

  // Makes drafts for decode items that may verify any, chooses which are verified, at most
  // max_drafts together, and appends their rows. What fails is verified without drafts.
  void Draft(std::span<StepItem> items, int64_t max_drafts, DecisionContext* context);

  // Keeps the hidden rows that the step committed. resource_exhausted when memory is not to be had;
  // drafts are then worse, not wrong.
  Status Keep(std::span<const StepItem> items, std::span<const float> main_hidden);

 private:
  struct Candidate;

  bool CanDraft(const StepItem& item) const;
  void Propose(const DraftRows& rows, std::span<Candidate> candidates, DecisionContext* context);
  // Draws draft k + 1 of a candidate; false when it gets no more of them.
  bool Draw(const DraftProposal& proposal, int32_t k, Candidate* c, std::span<float> logits,
            DecisionContext* context) const;
  double Calibrated(float raw, int32_t k) const;

  const ModelConfig& config_;
  const int32_t max_positions_;
  const SpeculationOptions options_;
  DraftModel draft_model_;
};

}  // namespace deepinfer
