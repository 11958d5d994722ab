#include "engine/actions/park.h"

#include <cstring>

namespace deepinfer {

void BeginPark(EngineState& state, Sequence& s) {
  s.state = SequenceState::kParking;
  s.schedule.last_parked_us = state.clock->NowUs();
  if (s.schedule.num_in_flight == 0) Park(state, s);
}

void Park(EngineState& state, Sequence& s) {
  KvMemory& memory = *state.memory;
  SequenceCache& c = s.cache;
  // All blocks: the indexed ones may be reclaimed before the sequence comes back.
  const auto slot_bytes = static_cast<size_t>(memory.layout().slot_bytes);
  const auto block_bytes = static_cast<size_t>(memory.layout().block_bytes);
  std::vector<std::byte> image(slot_bytes + static_cast<size_t>(c.num_blocks) * block_bytes);
  std::memcpy(image.data(), memory.Slot(c.slot), slot_bytes);
  for (int32_t i = 0; i < c.num_blocks; ++i) {
    std::memcpy(image.data() + slot_bytes + static_cast<size_t>(i) * block_bytes,
                memory.Block(s.device.block_table[static_cast<size_t>(i)]), block_bytes);
  }
  (void)memory.swa().PutParkImage(std::to_string(s.id), std::move(image), state.clock->NowUs());
  ReleaseMemory(state, s);
  s.launched = s.computed;
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
  ++state.statistics.parks;
}

}  // namespace deepinfer
