#include "engine/actions/export_state.h"

#include <algorithm>
#include <cstring>

#include "engine/actions/park.h"
#include "engine/cut_rows.h"

namespace deepinfer {

namespace {

int32_t NumCutRows(const Sequence& s) {
  return s.request.hand_off == HandOffProfile::kEncoder ? s.prompt_len - s.cache.decoder_origin : 0;
}

}  // namespace

void ExportBlocks(EngineState& state, Sequence& s) {
  if (s.request.state_sink == nullptr) return;
  KvMemory& memory = *state.memory;
  SequenceCache& c = s.cache;
  // Those of a hit are complete before its rows have run again.
  const int32_t end = std::min(s.prompt_end(), std::max(s.computed, c.write_from));
  const int32_t complete = end / kBlockTokens;
  if (complete <= c.num_exported) return;
  std::vector<int32_t> pinned;
  StateBlocks out;
  for (int32_t i = c.num_exported; i < complete; ++i) {
    const int32_t block = s.device.block_table[static_cast<size_t>(i)];
    memory.blocks().Pin(block);
    pinned.push_back(block);
    out.blocks.push_back(memory.Block(block));
  }
  out.first_block = std::exchange(c.num_exported, complete);
  out.pin = state.pins->Pin(std::move(pinned));
  out.positions = s.prompt_end();
  out.num_cut_rows = NumCutRows(s);
  s.request.state_sink->OnBlocks(std::move(out));
}

void AddImage(EngineState& state, Sequence& s, TokenEvent* event) {
  if (!s.holds_slot()) return;
  event->image_positions = s.prompt_end();
  event->num_cut_rows = NumCutRows(s);
  if (s.request.hand_off == HandOffProfile::kStore) return;
  KvMemory& memory = *state.memory;
  std::vector<std::byte>& image = event->image;
  if (s.request.state_sink == nullptr) {
    image = CopyImage(state, s);
  } else {
    const auto append = [&](const std::byte* from, int64_t size_bytes) {
      image.insert(image.end(), from, from + size_bytes);
    };
    append(memory.Slot(s.cache.slot), memory.layout().slot_bytes);
    const auto end = static_cast<int32_t>(KvLayout::NumBlocks(s.prompt_end()));
    for (int32_t i = s.cache.num_exported; i < end; ++i) {
      append(memory.Block(s.device.block_table[static_cast<size_t>(i)]),
             memory.layout().block_bytes);
    }
  }
  AppendCutRows(*state.model, s.device.cut_rows, &image);
}

void ReturnPins(EngineState& state) {
  for (const int32_t block : state.pins->TakeReturned()) state.memory->blocks().Unpin(block);
}

}  // namespace deepinfer
