#include "engine/actions/park.h"

#include <cstring>

#include "engine/state_image.h"

namespace deepinfer {

void BeginPark(EngineState& state, Sequence& s) {
  s.state = SequenceState::kParking;
  s.schedule.last_parked_us = state.clock->NowUs();
  if (s.schedule.num_in_flight == 0) Park(state, s);
}

std::vector<std::byte> CopyImage(const EngineState& state, const Sequence& s) {
  KvMemory& memory = *state.memory;
  // All blocks: the indexed ones may be reclaimed before the sequence comes back.
  const StateImageLayout layout = LayoutOfImage(memory.layout(), s.image_positions());
  std::vector<std::byte> image(static_cast<size_t>(layout.size_bytes()));
  std::memcpy(image.data(), memory.Slot(s.cache.slot), static_cast<size_t>(layout.slot_bytes()));
  for (int32_t i = 0; i < layout.num_blocks(); ++i) {
    layout.PutBlock(i, memory.Block(s.device.block_table[static_cast<size_t>(i)]), image);
  }
  return image;
}

void Park(EngineState& state, Sequence& s) {
  KvMemory& memory = *state.memory;
  std::vector<std::byte> image = CopyImage(state, s);
  (void)memory.swa().PutParkImage(std::to_string(s.id), std::move(image), state.clock->NowUs());
  ReleaseMemory(state, s);
  if (s.request.state_sink != nullptr) s.request.state_sink->OnParked();
  s.launched = s.computed;
  s.load.was_tried = false;
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
  ++state.statistics.parks;
}

}  // namespace deepinfer
