// Brings a parked sequence back: from its image at the same position, or by running rows again
// (architecture.md §8).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Blocks that a resumption would share, and how many of them are reclaimable now.
HitProbe ProbeParked(const EngineState& state, const Sequence& s);

// Takes slot and blocks. With its image the sequence continues where it was; without, it is set
// back to the first row that must run again. False when memory does not suffice now.
bool Resume(EngineState& state, Sequence& s);

}  // namespace deepinfer
