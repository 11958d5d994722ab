// The row of the last decided token, which decides the next one, behind those of the tokens before
// it that were known without their rows.
// Thread rule: engine thread.
#pragma once

#include <optional>

#include "engine/engine_state.h"

namespace deepinfer {

// Rows of the next step: those of all known tokens, up to the next block edge.
int32_t NumDecodeRows(const EngineState& state, const Sequence& s);

void LaunchDecode(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job);

// Takes over the results of rows that succeeded.
std::optional<TokenEvent> ProcessDecode(EngineState& state, StepItem* item);

}  // namespace deepinfer
