#include "engine/invariants.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace deepinfer {

namespace {

Status Breach(const Sequence& s, std::string_view what) {
  return Internal(s.request.request_id + ": " + std::string(what));
}

// How often tables and loads name each block.
Status CountHolders(const EngineState& state, std::vector<int32_t>* holders) {
  const int64_t num_blocks = state.memory->blocks().stats().capacity + 1;
  holders->assign(static_cast<size_t>(num_blocks), 0);
  const auto count = [&](const Sequence& s, int32_t block) {
    if (block == 0) return Breach(s, "block 0 is lent");
    if (block < 0 || block >= num_blocks) return Breach(s, "a block is not of the pool");
    ++(*holders)[static_cast<size_t>(block)];
    return OkStatus();
  };
  for (const auto& [id, s] : state.sequences) {
    for (int32_t i = 0; i < s->cache.num_blocks; ++i) {
      DI_RETURN_IF_ERROR(count(*s, s->device.block_table[static_cast<size_t>(i)]));
    }
    for (const int32_t block : s->load.held) DI_RETURN_IF_ERROR(count(*s, block));
  }
  return OkStatus();
}

Status CheckReferences(const EngineState& state) {
  const BlockPool& blocks = state.memory->blocks();
  DI_RETURN_IF_ERROR(blocks.Check());
  std::vector<int32_t> holders;
  DI_RETURN_IF_ERROR(CountHolders(state, &holders));
  for (size_t i = 0; i < holders.size(); ++i) {
    const int32_t refs = blocks.num_refs(static_cast<int32_t>(i));
    if (refs == holders[i]) continue;
    return Internal("block " + std::to_string(i) + " has " + std::to_string(refs) +
                    " references and " + std::to_string(holders[i]) + " holders");
  }
  return OkStatus();
}

Status CheckSlots(const EngineState& state) {
  const SlotPool& slots = state.memory->slots();
  std::vector<int32_t> lent;
  for (const auto& [id, s] : state.sequences) {
    if (s->holds_slot()) lent.push_back(s->cache.slot);
  }
  if (slots.acquired() - slots.released() != static_cast<int64_t>(lent.size())) {
    return Internal("lent slots differ from the sequences that hold one");
  }
  std::sort(lent.begin(), lent.end());
  if (std::adjacent_find(lent.begin(), lent.end()) != lent.end()) {
    return Internal("two sequences hold one slot");
  }
  return OkStatus();
}

// Complete blocks are immutable and carry the key of their place; those behind them are open.
Status CheckBlocks(const EngineState& state, const Sequence& s) {
  const BlockPool& blocks = state.memory->blocks();
  if (s.cache.num_published > s.image_positions() / kBlockTokens) {
    return Breach(s, "a block is offered that is not computed");
  }
  const auto& keys = s.cache.chain.keys();
  for (int32_t i = 0; i < s.cache.num_blocks; ++i) {
    const int32_t block = s.device.block_table[static_cast<size_t>(i)];
    const bool is_open = blocks.state(block) == BlockState::kFilling;
    if (i >= s.cache.num_published) {
      if (!is_open) return Breach(s, "an incomplete block is in the index");
      continue;
    }
    // What a branch shares has the key of its leader, which differs where requests share nothing
    // else, and stays open where the leader ends meanwhile.
    if (s.forked_from != 0 && i < s.prompt_len / kBlockTokens) continue;
    if (is_open) return Breach(s, "a complete block is open");
    if (static_cast<size_t>(i) >= keys.size() || blocks.key(block) != keys[static_cast<size_t>(i)])
      return Breach(s, "a block is not the one its key names");
  }
  return OkStatus();
}

Status CheckProgress(const Sequence& s) {
  if (s.launched - s.unsure < s.computed) return Breach(s, "rows were processed before launch");
  if (s.num_generated > 0 && s.rebuild_end == 0 && s.computed < s.prompt_len &&
      s.state != SequenceState::kPrefilling && s.state != SequenceState::kParked &&
      s.state != SequenceState::kLoading) {
    return Breach(s, "it decodes before its prompt is computed");
  }
  return OkStatus();
}

// Whether branches of it may hold its open block too: they do not write.
bool HasForks(const EngineState& state, const Sequence& s) {
  return std::any_of(state.sequences.begin(), state.sequences.end(),
                     [&](const auto& other) { return other.second->forked_from == s.id; });
}

Status CheckWrites(const EngineState& state, const Sequence& s, const SequenceStep& rows) {
  const BlockPool& blocks = state.memory->blocks();
  const int32_t end = rows.start + rows.num_rows;
  if (KvLayout::NumBlocks(end) > s.cache.num_blocks) {
    return Breach(s, "a row reaches behind the blocks of its sequence");
  }
  for (int32_t p = std::max(rows.start, rows.write_from); p < end;
       p = (p / kBlockTokens + 1) * kBlockTokens) {
    const int32_t block = rows.block_table[static_cast<size_t>(p / kBlockTokens)];
    if (blocks.state(block) != BlockState::kFilling) {
      return Breach(s, "a row writes to a complete block");
    }
    if (blocks.num_refs(block) > 1 && !HasForks(state, s)) {
      return Breach(s, "a row writes to a block of others");
    }
  }
  return OkStatus();
}

Status CheckItem(const EngineState& state, const StepItem& item) {
  const Sequence& s = *item.sequence;
  const SequenceStep& rows = item.rows;
  if (rows.start != s.computed) return Breach(s, "rows do not follow what was computed");
  if (rows.window_floor > rows.start) return Breach(s, "a row lies below the clamp of its window");
  const int32_t end = rows.start + rows.num_rows;
  if (end > rows.decoder_from && rows.decoder_origin > std::max(rows.start, rows.decoder_from)) {
    return Breach(s, "a row lies below the clamp of its decoder window");
  }
  return CheckWrites(state, s, rows);
}

}  // namespace

Status CheckState(const EngineState& state) {
  DI_RETURN_IF_ERROR(CheckReferences(state));
  DI_RETURN_IF_ERROR(CheckSlots(state));
  for (const auto& [id, s] : state.sequences) {
    DI_RETURN_IF_ERROR(CheckBlocks(state, *s));
    DI_RETURN_IF_ERROR(CheckProgress(*s));
  }
  return OkStatus();
}

Status CheckRows(const EngineState& state, const StepJob& job) {
  if (!job.status.ok()) return OkStatus();
  for (const StepItem& item : job.items) {
    if (!item.ran || !item.status.ok() || IsTerminal(item.sequence->state)) continue;
    DI_RETURN_IF_ERROR(CheckItem(state, item));
  }
  return OkStatus();
}

Status CheckIdle(const EngineState& state) {
  const BlockPoolStats& blocks = state.memory->blocks().stats();
  if (blocks.refs_taken != blocks.refs_released) return Internal("references of blocks are left");
  if (blocks.pins_taken != blocks.pins_released) return Internal("pins of blocks are left");
  if (blocks.free + blocks.idle != blocks.capacity) return Internal("blocks are left in use");
  if (state.memory->slots().acquired() != state.memory->slots().released()) {
    return Internal("slots are left");
  }
  if (state.memory->swa().stats().num_park_images != 0) return Internal("parked states are left");
  if (!state.loading.empty() || !state.compiling.empty() || state.queue.size() != 0 ||
      !state.active.empty() || !state.parked.empty()) {
    return Internal("a list names a sequence that is gone");
  }
  if (state.queued_prompts.prompts != 0 || state.queued_prompts.tokens != 0 ||
      state.queued_output_tokens != 0) {
    return Internal("the sums over queued requests are not zero");
  }
  if (!state.copies.empty() || !state.forks.empty()) return Internal("copies wait for no step");
  return OkStatus();
}

void ReportBreach(EngineState& state, const Status& breach) {
  if (breach.ok()) return;
  ++state.statistics.invariant_breaches;
  Log(LogLevel::kError, "engine.invariant", {{"status", breach}});
  if constexpr (kChecksEveryStep) DI_CHECK(breach.ok());
}

void CheckStep(EngineState& state) {
  if constexpr (kChecksEveryStep) ReportBreach(state, CheckState(state));
}

void SweepIdle(EngineState& state) {
  if (state.swept || !state.sequences.empty() || !state.pins->none_out()) return;
  state.swept = true;
  ReportBreach(state, CheckState(state));
  ReportBreach(state, CheckIdle(state));
}

}  // namespace deepinfer
