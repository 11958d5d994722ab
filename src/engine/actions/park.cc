#include "engine/actions/park.h"

#include <cstring>

namespace deepinfer {

void BeginPark(EngineState& state, Sequence& s) {
  s.state = SequenceState::kParking;
  s.schedule.last_parked_us = state.clock->NowUs();
  if (s.schedule.num_in_flight == 0) Park(state, s);
}

std::vector<std::byte> CopyImage(const EngineState& state, const Sequence& s) {
  KvMemory& memory = *state.memory;
  // All blocks: the indexed ones may be reclaimed before the sequence comes back.
  const auto slot_bytes = static_cast<size_t>(memory.layout().slot_bytes);
  const auto block_bytes = static_cast<size_t>(memory.layout().block_bytes);
  const auto num_blocks = static_cast<int32_t>(KvLayout::NumBlocks(s.computed));
  std::vector<std::byte> image(slot_bytes + static_cast<size_t>(num_blocks) * block_bytes);
  std::memcpy(image.data(), memory.Slot(s.cache.slot), slot_bytes);
  for (int32_t i = 0; i < num_blocks; ++i) {
    std::memcpy(image.data() + slot_bytes + static_cast<size_t>(i) * block_bytes,
                memory.Block(s.device.block_table[static_cast<size_t>(i)]), block_bytes);
  }
  return image;
}

void Park(EngineState& state, Sequence& s) {
  KvMemory& memory = *state.memory;
  std::vector<std::byte> image = CopyImage(state, s);
  (void)memory.swa().PutParkImage(std::to_string(s.id), std::move(image), state.clock->NowUs());
  ReleaseMemory(state, s);
  s.launched = s.computed;
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
  ++state.statistics.parks;
}

}  // namespace deepinfer
