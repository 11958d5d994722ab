// Drafts inside a step: made for its decode items before their rows run, kept up with the committed
// positions after it (dspark.md §2, §3, §6).
// Thread rule: step thread. Owner: StepExecutor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/options.h"
#include "engine/side_work.h"
#include "engine/step_job.h"
#include "engine/token_decision.h"
#include "model/draft_model.h"
#include "model/model.h"
#include "sched/verify_length.h"

namespace deepinfer {

class Drafter {
 public:
  // model is borrowed. Precondition: it has a draft model.
  Drafter(const Model& model, const SpeculationOptions& options);

  // Most drafts of a step, by the model and the options.
  static int32_t MaxDrafts(const ModelConfig& config, const SpeculationOptions& options);

  // Makes drafts for decode items that may verify any, chooses which are verified under the budget,
  // and appends their rows. What fails is verified without drafts. Finishes `masks`, the masks
  // behind the decided tokens, before it needs one.
  void Draft(std::span<StepItem> items, const VerifyBudget& budget, SideWork* masks,
             DecisionContext* context);

  // Keeps the hidden rows that the step committed. resource_exhausted when memory is not to be had;
  // drafts are then worse, not wrong.
  Status Keep(std::span<const StepItem> items, std::span<const float> main_hidden);

  // The step left no hidden rows: later drafts do without the positions up to here.
  static void Forget(std::span<const StepItem> items);

 private:
  struct Candidate;

  bool CanDraft(const StepItem& item) const;
  // The sequential part.
  void Propose(std::span<Candidate> candidates, const VerifyBudget& budget,
               DecisionContext* context);
  // Draws draft k + 1 of a candidate; false when it gets no more of them.
  bool Draw(int32_t k, Candidate* c, DecisionContext* context);
  // Closes candidates whose further drafts could not be admitted under the budget, so that the
  // choice is the one among all drafts.
  static void CloseHopeless(std::span<Candidate> candidates, const VerifyBudget& budget);
  static std::vector<DraftSurvivals> CurrentSurvivals(std::span<const Candidate> candidates);
  // Writes the draft rings up to the anchors.
  Status InjectPending(std::span<const Candidate> candidates);
  void Append(const float* hidden, int32_t start, int32_t num_rows, PendingContext* pending) const;
  double Calibrated(float raw, int32_t k) const;
  // The confidence of a draft, with what its request showed before.
  double Acceptance(double confidence, const StepItem& item) const;

  const ModelConfig& config_;
  const int32_t max_positions_;
  const SpeculationOptions options_;
  DraftModel draft_model_;
  DraftRows rows_;
  DraftProposal proposal_;  // reused between steps
};

}  // namespace deepinfer
