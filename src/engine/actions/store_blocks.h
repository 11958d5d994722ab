// Completed blocks on their way into the persistent store, and the marks of use that keep them
// there (kv_format.md §20).
// Thread rule: engine thread; nothing here waits for a disk.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Offers block i of the sequence, complete in the pool, to the store. Nothing happens without a
// store, for requests that stay in memory, and for blocks that are stored already.
void StoreBlock(EngineState& state, Sequence& s, int32_t i);

// After admission: marks the stored blocks of the hit as used, and offers those that are in memory
// only, so that the chain has no gap.
void KeepHit(EngineState& state, Sequence& s);

}  // namespace deepinfer
