// Branches of one prompt: they share its full blocks and get copies of its window state and open
// block, in the step after the one that completes the prompt (architecture.md §8).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Whether `branch` may share the prompt of `leader`: equal ids, scope and decoder tail, and the
// prompt not yet behind.
bool CanShare(const Sequence& leader, const Sequence& branch);

// Forks the branches of every prompt whose last chunk has been launched; of those for which no
// memory is left the first is queued and leads the others.
void ForkBranches(EngineState& state);

// Parts a leader from the branches that will not fork from it: the first is queued in its place.
void ReleaseBranches(EngineState& state, Sequence& leader);

}  // namespace deepinfer
