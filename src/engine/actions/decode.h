// The row of the last decided token, which decides the next one.
// Thread rule: engine thread.
#pragma once

#include <optional>

#include "engine/engine_state.h"

namespace deepinfer {

void LaunchDecode(EngineState& state, Sequence& s, StepJob* job);

// Takes over the results of a row that succeeded.
std::optional<TokenEvent> ProcessDecode(EngineState& state, StepItem* item);

}  // namespace deepinfer
