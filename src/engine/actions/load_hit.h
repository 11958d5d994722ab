// Admission of a queued sequence: takes a slot and, where the prompt begins like an earlier one,
// its blocks (model.md §13.2).
// Thread rule: engine thread.
#pragma once

#include <span>

#include "engine/engine_state.h"

namespace deepinfer {

// Highest replay_gen of a block that requests of this engine accept.
uint16_t MaxReplayGen(const EngineState& state);
// Stored blocks above it are of no use to bounded replay: what is computed replaces them.
uint16_t ReplaceAboveGen(const EngineState& state);
// False for requests of which every row must run.
bool MayUseCache(const EngineState& state, const Sequence& s);
// Keys of the whole blocks of the prompt.
std::span<const BlockKey> PromptKeys(const Sequence& s);

// What the sequence would find in the cache now: the first row to run and the blocks it would
// share. Cheap enough to be asked again before every admission.
HitProbe ProbeHit(EngineState& state, Sequence& s);

// Gives the sequence slot, shared blocks and window state as its probe says. False, with a fresh
// probe, when the pool has changed since; then the next plan knows better.
bool Admit(EngineState& state, Sequence& s);

// The first row of the prompt that runs the decoder layers (model.md §13.1).
int32_t DecoderOrigin(const EngineState& state, const EngineRequest& request);
void SetTail(const EngineState& state, Sequence& s);

}  // namespace deepinfer
