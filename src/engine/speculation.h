// How many drafts requests may verify: what the engine knows about drafting from the steps behind
// it (dspark.md §5, §6). Which of them are verified is decided inside the step, by confidences.
// Thread rule: engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine_state.h"

namespace deepinfer {

// invalid_request when an option does not fit the model or its range.
Status ValidateSpeculation(const ModelConfig& config, const SpeculationOptions& options);

// Chooses which sequences draft in the next step.
void ChooseDrafters(EngineState& state);

// Most drafts the sequence may verify in its next step; 0 where drafting is off or does not pay.
int32_t MaxDrafts(const EngineState& state, const Sequence& s);

// Drafts of a request that a step verified lately.
int32_t UsualDrafts(const EngineState& state);

// How many drafts the items of the job may verify, and whether its hidden rows are worth keeping:
// not while drafts rest. Books the items that draft.
void PlanDrafts(EngineState& state, StepJob* job);

// Completes the rows of a step that ran by those of decode items, and learns what drafts cost.
// Tries that did not run are taken back.
void ObserveStepDrafts(EngineState& state, StepJob* job);

// Learns from a processed decode item, and books its drafts.
void ObserveDrafts(EngineState& state, const StepItem& item);

}  // namespace deepinfer
