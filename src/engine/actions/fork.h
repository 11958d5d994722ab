// Branches of one prompt: they share its full blocks and get copies of its window state and open
// block, in the step after the one that completes the prompt (architecture.md §8).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Whether `branch` may share the prompt of `leader`: equal ids, scope and decoder tail, and the
// prompt not yet behind.
bool CanShare(const Sequence& leader, const Sequence& branch);

// Forks the branches of every prompt whose last chunk has been launched; those for which no memory
// is left are queued like other requests.
void ForkBranches(EngineState& state);

// Queues the branches of a leader that will not complete its prompt: the first takes its place.
void ReleaseBranches(EngineState& state, Sequence& leader);

}  // namespace deepinfer
