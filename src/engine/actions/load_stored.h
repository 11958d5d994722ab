// The wait of a new request: blocks of its prompt that are in the persistent store come into the
// pool meanwhile, so that its admission finds them there (kv_format.md §20).
// Thread rule: engine thread; nothing here waits for a disk.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Queues the sequence, or begins to load what the store holds of its prompt; then PollLoads queues
// it, with its place by arrival.
void BeginWaiting(EngineState& state, Sequence& s);

// Moves arrived blocks into the pool and queues sequences whose load is over: complete, failed, or
// past its deadline. What arrived is kept in any case.
void PollLoads(EngineState& state);

// Gives up the load of a sequence that ends while it waits.
void AbandonLoad(EngineState& state, Sequence& s);

}  // namespace deepinfer
