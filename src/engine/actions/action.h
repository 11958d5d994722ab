// Rows of a sequence as part of a step, and what becomes of their results: what prefill and decode
// have in common.
// Thread rule: engine thread.
#pragma once

#include <memory>
#include <optional>

#include "engine/engine_state.h"

namespace deepinfer {

// Appends the rows [launched, launched + num_rows) to the job; the blocks they write are there.
StepItem& AddItem(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job);

// The tokens that the item decided, as an event; none where it decided none.
std::optional<TokenEvent> TakeTokens(EngineState& state, StepItem* item);

// Whether window state is kept at block edges, and where it goes: under the key of the block that
// ends at its edge.
bool KeepsSnapshots(const EngineState& state);
// Whether the end of what the request computed is worth keeping, marked or not.
inline bool KeepsAll(const Sequence& s) {
  return s.request.cache_retention.kept_tokens == kKeepAll;
}
void KeepSnapshot(EngineState& state, Sequence& s, const EdgeSnapshot& snapshot);

}  // namespace deepinfer
