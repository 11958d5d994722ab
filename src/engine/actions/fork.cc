#include "engine/actions/fork.h"

#include <algorithm>

#include "engine/actions/load_stored.h"

namespace deepinfer {

namespace {

// The branch starts with the last row of the prompt: its own logits row, nothing written to shared
// blocks.
bool TryFork(EngineState& state, Sequence& leader, Sequence& branch) {
  KvMemory& memory = *state.memory;
  if (memory.slots().num_free() == 0) return false;
  const int32_t prompt = leader.prompt_len;
  const int32_t full = prompt / kBlockTokens;
  const bool has_tail = prompt % kBlockTokens != 0;
  const int32_t tail = has_tail ? memory.blocks().Allocate() : 0;
  if (has_tail && tail == 0) return false;

  PrepareDevice(state, branch);
  SequenceCache& c = branch.cache;
  const SequenceCache& from = leader.cache;
  for (int32_t i = 0; i < full; ++i) {
    const int32_t block = leader.device.block_table[static_cast<size_t>(i)];
    memory.blocks().AddRef(block);
    branch.device.block_table[static_cast<size_t>(i)] = block;
  }
  if (has_tail) {
    branch.device.block_table[static_cast<size_t>(full)] = tail;
    state.copies.push_back({memory.Block(tail),
                            memory.Block(leader.device.block_table[static_cast<size_t>(full)]),
                            memory.layout().block_bytes});
  }
  c.slot = memory.slots().Acquire();
  state.copies.push_back({memory.Slot(c.slot), memory.Slot(from.slot), memory.layout().slot_bytes});
  state.forks.push_back({&leader, &branch});
  ++leader.schedule.num_in_flight;
  ++branch.schedule.num_in_flight;

  c.num_blocks = full + has_tail;
  c.num_published = full;
  c.write_from = prompt;
  c.window_floor = from.window_floor;
  c.first_row = from.first_row;
  c.first_floor = from.first_floor;
  c.whole_from = from.whole_from;
  c.decoder_origin = from.decoder_origin;
  c.decoder_from = from.decoder_from;
  c.decoder_floor = from.decoder_floor;
  c.replay_gen = from.replay_gen;
  branch.launched = branch.computed = branch.counted = prompt - 1;
  branch.counters.cached_tokens = prompt - 1;
  branch.counters.cached_by_tier[static_cast<size_t>(CacheTier::kDram)] = prompt - 1;
  branch.counters.replayed_tokens = 1;
  branch.forked_from = leader.id;
  branch.state = SequenceState::kPrefilling;
  state.active.push_back(&branch);
  return true;
}

}  // namespace

bool CanShare(const Sequence& leader, const Sequence& branch) {
  return !IsTerminal(leader.state) && leader.launched < leader.prompt_len &&
         !leader.wants_prompt_logprobs() && !branch.wants_prompt_logprobs() &&
         // Below the decoder there is no state to continue from.
         !leader.hands_over_undecided() && !branch.hands_over_undecided() &&
         leader.request.cache_scope == branch.request.cache_scope &&
         leader.request.prompt_ids == branch.request.prompt_ids;
}

void ForkBranches(EngineState& state) {
  const std::vector<Sequence*> leaders = state.active;
  for (Sequence* leader : leaders) {
    if (leader->branches.empty() || leader->launched < leader->prompt_len) continue;
    std::erase_if(leader->branches, [&](int64_t id) {
      Sequence* branch = state.Find(id);
      if (branch == nullptr || branch->state != SequenceState::kPending) return true;
      if (!TryFork(state, *leader, *branch)) return false;
      NoteStart(state, *branch);
      return true;
    });
    // The leader goes on and leaves the state behind that branches begin with.
    ReleaseBranches(state, *leader);
  }
}

void ReleaseBranches(EngineState& state, Sequence& leader) {
  Sequence* successor = nullptr;
  for (int64_t id : leader.branches) {
    Sequence* branch = state.Find(id);
    if (branch == nullptr || branch->state != SequenceState::kPending) continue;
    if (successor != nullptr) {
      successor->branches.push_back(id);
      continue;
    }
    successor = branch;
    BeginWaiting(state, *branch);
  }
  leader.branches.clear();
}

}  // namespace deepinfer
