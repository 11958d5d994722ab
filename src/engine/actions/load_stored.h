// The wait of a new request, of one that another engine began, or of a parked one that lost its
// image: its blocks that are in the persistent store come into the pool meanwhile, so that its
// admission or resumption finds them there (kv_format.md §20).
// Thread rule: engine thread; nothing here waits for a disk.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Lines the sequence up, queued when it is new and parked when another engine began it; or begins
// to load what the store holds of it, or waits for what the store is about to hold. Then PollLoads
// lines it up, with its place by arrival.
void BeginWaiting(EngineState& state, Sequence& s);

// A parked sequence is to come back, and its image is gone: begins to load what the store holds of
// the blocks that are gone too, once for each time that it was parked. False when there is nothing
// to wait for; else PollLoads makes it a parked one again.
bool BeginReload(EngineState& state, Sequence& s);

// Moves arrived blocks into the pool and lines up sequences whose load is over: complete, failed,
// or past its deadline. What arrived is kept in any case.
void PollLoads(EngineState& state);

// Gives up the load of a sequence that ends while it waits.
void AbandonLoad(EngineState& state, Sequence& s);

}  // namespace deepinfer
