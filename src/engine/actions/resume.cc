#include "engine/actions/resume.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "engine/actions/load_stored.h"
#include "engine/state_image.h"

namespace deepinfer {

namespace {

constexpr uint16_t kAnyGen = std::numeric_limits<uint16_t>::max();

// Leading complete blocks that the index still has.
int32_t CountIndexed(const EngineState& state, const Sequence& s) {
  const auto& keys = s.cache.chain.keys();
  const std::span<const BlockKey> own(keys.data(), static_cast<size_t>(s.cache.num_published));
  return static_cast<int32_t>(state.memory->blocks().CountHit(own, MaxGenOfParked(s)));
}

// The indexed block with the same bytes as block i of the sequence, 0 if there is none. Blocks of a
// bounded lineage may be another writer's with other bytes.
int32_t FindSame(const EngineState& state, const Sequence& s, int32_t i) {
  if (i >= s.cache.num_published || s.cache.replay_gen > 0) return 0;
  const BlockPool& blocks = state.memory->blocks();
  const int32_t block = blocks.Find(s.cache.chain.keys()[static_cast<size_t>(i)]);
  return block != 0 && blocks.replay_gen(block) == 0 ? block : 0;
}

// Blocks from the index, or fresh ones with the bytes of the image. The pool has them.
void RestoreBlocks(EngineState& state, Sequence& s, std::span<const std::byte> image) {
  KvMemory& memory = *state.memory;
  const StateImageLayout layout = LayoutOfImage(memory.layout(), s.image_positions());
  int32_t* table = s.device.block_table.get();
  s.cache.num_blocks = layout.num_blocks();
  // Shared ones first: an allocation may reclaim idle blocks.
  for (int32_t i = 0; i < s.cache.num_blocks; ++i) {
    table[i] = 0;
    if (FindSame(state, s, i) == 0) continue;
    const BlockKey& key = s.cache.chain.keys()[static_cast<size_t>(i)];
    table[i] = memory.blocks().AcquireHit({&key, 1}, kAnyGen).front();
  }
  for (int32_t i = 0; i < s.cache.num_blocks; ++i) {
    if (table[i] != 0) continue;
    table[i] = memory.blocks().Allocate();
    DI_CHECK(table[i] != 0);
    layout.GetBlock(i, image, memory.Block(table[i]));
    if (i >= s.cache.num_published) continue;
    (void)memory.blocks().Publish(table[i], s.cache.chain.keys()[static_cast<size_t>(i)],
                                  s.cache.replay_gen);
  }
}

// Sets the sequence back to the first row whose results reach into its lost state.
void PlanRebuild(EngineState& state, Sequence& s) {
  SequenceCache& c = s.cache;
  const bool exact = state.options.resume == ReplayMode::kExact;
  const bool in_prompt = s.reached() < s.prompt_len;
  const int32_t end = in_prompt ? s.prompt_len : s.reached();
  const int32_t hit = CountIndexed(state, s) * kBlockTokens;
  const RebuildRows rows = RowsToRebuild(state, s, hit);
  // What was computed of the decoder tail elsewhere belongs to the state that is lost.
  if (!s.hands_over_undecided()) s.device.cut_rows = std::vector<float>();
  c.image_positions = 0;
  c.write_from = hit;
  c.window_floor = rows.window_floor;
  c.whole_from = rows.whole_from;
  c.decoder_from = rows.decoder_from;
  c.decoder_floor = rows.decoder_from;
  // Blocks of a bounded lineage may come back as another writer's.
  if (!exact || c.replay_gen > 0) s.counters.approximate_resume = true;
  if (!exact && c.replay_gen < kAnyGen) ++c.replay_gen;
  c.num_blocks = c.num_published = hit / kBlockTokens;
  s.rebuild_end = in_prompt ? 0 : end;
  s.launched = s.computed = rows.first_row;
  // Those of rows that run again come again.
  if (in_prompt && std::ssize(s.prompt_logprobs) > rows.first_row) {
    s.prompt_logprobs.resize(static_cast<size_t>(rows.first_row));
  }
}

}  // namespace

// Of an exact lineage only blocks of one continue it exactly.
uint16_t MaxGenOfParked(const Sequence& s) { return s.cache.replay_gen == 0 ? 0 : kAnyGen; }

RebuildRows RowsToRebuild(const EngineState& state, const Sequence& s, int32_t hit) {
  const SequenceCache& c = s.cache;
  const ReplayGeometry& g = state.memory->geometry();
  const int32_t window_reach = g.window - 1;
  const int32_t decoder_layers = state.model->config().num_layers - g.encoder_layers;
  const bool exact = state.options.resume == ReplayMode::kExact;
  const bool in_prompt = s.reached() < s.prompt_len;
  const int32_t end = in_prompt ? s.prompt_len : s.reached();
  const int32_t reach = exact ? window_reach * decoder_layers : g.keep_rows;
  RebuildRows rows;
  rows.decoder_from = in_prompt ? c.decoder_origin : std::max(c.decoder_origin, end - reach);
  const int32_t base = std::min(hit, rows.decoder_from);
  rows.first_row = std::max(0, base - (exact ? window_reach * g.encoder_layers : g.window));
  rows.window_floor = rows.first_row;
  rows.whole_from = rows.first_row > 0 ? base : 0;
  // After a bounded replay its first row had no window below it either.
  const bool began_bounded = c.replay_gen > 0 && c.first_floor == c.first_row;
  if (exact && began_bounded && rows.first_row < c.first_row && hit >= c.first_row) {
    rows.first_row = rows.window_floor = c.first_row;
    rows.whole_from = c.first_row + g.window;
  }
  return rows;
}

HitProbe ProbeParked(const EngineState& state, const Sequence& s) {
  HitProbe probe;
  probe.valid = true;
  for (int32_t i = 0; i < s.cache.num_published; ++i) {
    const int32_t block = FindSame(state, s, i);
    if (block == 0) continue;
    ++probe.hit_blocks;
    probe.hit_idle += state.memory->blocks().state(block) == BlockState::kIdle;
  }
  return probe;
}

bool Resume(EngineState& state, Sequence& s) {
  KvMemory& memory = *state.memory;
  if (memory.slots().num_free() == 0) return false;
  const HitProbe probe = ProbeParked(state, s);
  const int64_t missing = KvLayout::NumBlocks(s.image_positions()) - probe.hit_blocks;
  if (memory.blocks().available() - probe.hit_idle < missing) return false;
  auto image = memory.swa().TakeParkImage(std::to_string(s.id), state.clock->NowUs());
  if (!image.has_value() && BeginReload(state, s)) return false;
  s.cache.slot = memory.AcquireCleanSlot();
  if (image.has_value()) {
    const auto slot_bytes = static_cast<size_t>(memory.layout().slot_bytes);
    std::memcpy(memory.Slot(s.cache.slot), image->data(), slot_bytes);
    RestoreBlocks(state, s, *image);
    ++state.statistics.resumes_from_image;
  } else {
    const uint16_t max_gen = MaxGenOfParked(s);
    PlanRebuild(state, s);
    const std::span<const BlockKey> keys(s.cache.chain.keys().data(),
                                         static_cast<size_t>(s.cache.num_blocks));
    const std::vector<int32_t> hit = memory.blocks().AcquireHit(keys, max_gen);
    std::copy(hit.begin(), hit.end(), s.device.block_table.get());
    ++state.statistics.resumes_rebuilt;
  }
  std::erase(state.parked, &s);
  state.active.push_back(&s);
  if (s.computed >= s.prefill_end()) {
    s.state = SequenceState::kRunning;
  } else {
    s.state = s.rebuild_end > 0 ? SequenceState::kResuming : SequenceState::kPrefilling;
  }
  return true;
}

}  // namespace deepinfer
