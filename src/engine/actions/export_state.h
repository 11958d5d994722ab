// The state of a prompt on its way to the engine that runs the answer: complete blocks as they
// come, the rest at the end (cluster.md §6). Thread rule: engine thread.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// Offers blocks that are new and complete to the state sink of the sequence, pinned.
void ExportBlocks(EngineState& state, Sequence& s);

// Adds what the sink did not get to the last event of the prompt. Precondition: no rows in flight.
void AddImage(EngineState& state, Sequence& s, TokenEvent* event);

// Takes the pins back that other threads have let go of.
void ReturnPins(EngineState& state);

}  // namespace deepinfer
