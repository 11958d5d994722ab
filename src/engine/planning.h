// From the sequences to the planner's snapshot, and from its plan to a job.
// Thread rule: engine thread.
#pragma once

#include <memory>

#include "engine/engine_state.h"

namespace deepinfer {

struct PlannedStep {
  std::unique_ptr<StepJob> job;  // nullptr: nothing to run
  bool changed_memory = false;   // sequences came or went, so the next plan may find more
};

// The next step. Admits, resumes, forks and parks as the plan says.
PlannedStep PlanStep(EngineState& state);

}  // namespace deepinfer
