// The next chunk of a prompt, or of what is rebuilt after a lost image; the last chunk of a prompt
// decides the first token.
// Thread rule: engine thread.
#pragma once

#include <optional>
#include <vector>

#include "engine/engine_state.h"

namespace deepinfer {

// Ascending positions at which the chunks of the sequence must end.
std::vector<int32_t> PrefillCuts(const EngineState& state, const Sequence& s);

void LaunchPrefill(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job);

// Takes over the results of a chunk that succeeded.
std::optional<TokenEvent> ProcessPrefill(EngineState& state, StepItem* item);

}  // namespace deepinfer
