// Brings a parked sequence back: from its image at the same position, or by running rows again
// (architecture.md §8).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Blocks that a resumption would share, and how many of them are reclaimable now.
HitProbe ProbeParked(const EngineState& state, const Sequence& s);

// Highest replay_gen of a block that continues the sequence.
uint16_t MaxGenOfParked(const Sequence& s);

// Which rows run again when the state is lost and the leading `hit` positions are in blocks.
struct RebuildRows {
  int32_t first_row = 0;
  int32_t window_floor = 0;
  int32_t whole_from = 0;
  int32_t decoder_from = 0;
};
RebuildRows RowsToRebuild(const EngineState& state, const Sequence& s, int32_t hit);

// Takes slot and blocks. With its image the sequence continues where it was; without, it is set
// back to the first row that must run again. False when memory does not suffice now, or when its
// blocks come from the store first.
bool Resume(EngineState& state, Sequence& s);

}  // namespace deepinfer
