// Takes a sequence off the device: its state goes to host memory, its blocks stay as long as nobody
// needs the room.
// Thread rule: engine thread.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/engine_state.h"

namespace deepinfer {

// State slot, then the blocks of all computed positions. Precondition: no rows in flight.
std::vector<std::byte> CopyImage(const EngineState& state, const Sequence& s);

// Stops planning the sequence; Park follows once its rows in flight were processed.
void BeginPark(EngineState& state, Sequence& s);

// Precondition: kParking, no rows in flight.
void Park(EngineState& state, Sequence& s);

}  // namespace deepinfer
