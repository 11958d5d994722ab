// Admission of a queued sequence: takes a slot and, where the prompt begins like an earlier one,
// its blocks (model.md §13.2).
// Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// What the sequence would find in the cache now: the first row to run and the blocks it would
// share. Cheap enough to be asked again before every admission.
HitProbe ProbeHit(EngineState& state, Sequence& s);

// Gives the sequence slot, shared blocks and window state as its probe says. False, with a fresh
// probe, when the pool has changed since; then the next plan knows better.
bool Admit(EngineState& state, Sequence& s);

// Which rows of the prompt run the decoder layers (model.md §13.1).
void SetTail(const EngineState& state, Sequence& s);

}  // namespace deepinfer
