// Who owes what for a step that ran: shares of its time and blocks held, into the counters of the
// requests (docs/economics.md section 3).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"
#include "engine/step_job.h"

namespace deepinfer {

// The job ran and its items were not processed yet, so that their events carry the charges.
void ChargeStep(EngineState& state, const StepJob& job);

}  // namespace deepinfer
