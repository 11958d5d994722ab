#include "engine/actions/load_stored.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/actions/load_hit.h"
#include "engine/actions/resume.h"
#include "kvcache/kv_store.h"

namespace deepinfer {

namespace {

// Blocks moved into the pool per look: more would keep the engine thread from planning.
constexpr int32_t kMaxMovedBlocks = 64;
// Share of the pool that loads fill at a time, and the share that they leave to running requests.
constexpr int64_t kLoadingShare = 4;
constexpr int64_t kSpareShare = 16;

// For a store that is about to hold blocks: its group commit, and the look of a process at what
// others have committed.
constexpr int64_t kExpectUs = 1'500'000;
// Between two looks for them, which cost a search for each block.
constexpr int64_t kExpectLookUs = 20'000;

enum class Begun : uint8_t { kNothing, kWaits, kStarted };

// Keys of the blocks that the sequence can use.
std::span<const BlockKey> UsefulKeys(const Sequence& s) {
  if (!s.resumes()) return PromptKeys(s);
  return {s.cache.chain.keys().data(), static_cast<size_t>(s.cache.num_published)};
}

uint16_t AcceptedGen(const EngineState& state, const Sequence& s) {
  return s.resumes() ? MaxGenOfParked(s) : MaxReplayGen(state);
}

// Rows [first, end) that are left to run after a hit of so many blocks, without window state in
// memory; those from decoder_from on run the decoder.
struct RowsLeft {
  int64_t first = 0, end = 0, decoder_from = 0;
};

RowsLeft LeftAfter(const EngineState& state, const Sequence& s, int64_t num_blocks) {
  if (s.resumes()) {
    const RebuildRows rows =
        RowsToRebuild(state, s, static_cast<int32_t>(num_blocks) * kBlockTokens);
    return {rows.first_row, s.reached(), rows.decoder_from};
  }
  ReplayInput input;
  input.prompt_tokens = s.prompt_len;
  input.hit_tokens = num_blocks * kBlockTokens;
  const int32_t keep = state.memory->geometry().keep_rows;
  return {PlanReplay(state.memory->geometry(), state.options.replay, input).first_row, s.prompt_len,
          std::max(0, s.prompt_len - keep)};
}

int64_t PredictUs(const EngineState& state, const RowsLeft& left) {
  StepRows rows;
  state.cost().AddPrefill(left.first, left.end, left.decoder_from, &rows);
  return static_cast<int64_t>(state.step_time.Predict(rows));
}

// Why the store's blocks are not worth their load, or kNone; then *wait_us is how long it may take.
MissReason Judge(const EngineState& state, const Sequence& s, int64_t in_memory, int64_t stored,
                 int64_t* wait_us) {
  const int64_t hit = in_memory + stored;
  const RowsLeft with = LeftAfter(state, s, hit), without = LeftAfter(state, s, in_memory);
  if (hit * kBlockTokens < state.options.min_hit_tokens || with.first <= without.first) {
    return MissReason::kTooShort;
  }
  const int64_t now_us = state.clock->NowUs();
  const int64_t with_us = PredictUs(state, with);
  LoadInput input;
  input.min_wait_us = state.options.min_load_wait_us;
  input.load_us = state.load_time.PredictUs(stored * kBlockTokens, now_us);
  input.saved_us = static_cast<double>(PredictUs(state, without) - with_us);
  if (s.request.first_token_deadline_us != 0 && s.num_generated == 0) {
    input.slack_us = s.request.first_token_deadline_us - now_us - with_us;
  }
  const LoadChoice choice = ChooseLoad(input);
  *wait_us = choice.wait_us;
  return choice.load ? MissReason::kNone : MissReason::kSlower;
}

// Whether another sequence is loading block `first` of this one: its blocks are shared once there.
bool IsLoading(const EngineState& state, const Sequence& s, int64_t first) {
  const auto at = static_cast<size_t>(first);
  return std::ranges::any_of(state.loading, [&](const Sequence* other) {
    const SequenceLoad& load = other->load;
    return other != &s && load.handle != nullptr && first >= load.first_block &&
           first < load.first_block + load.num_wanted &&
           other->cache.chain.keys()[at] == s.cache.chain.keys()[at];
  });
}

bool HasRoom(const EngineState& state, int64_t num_blocks) {
  int64_t loading = 0;
  for (const Sequence* s : state.loading) {
    if (s->load.handle != nullptr) loading += s->load.num_wanted;
  }
  return loading == 0 ||
         loading + num_blocks <= state.memory->blocks().stats().capacity / kLoadingShare;
}

Begun Begin(EngineState& state, Sequence& s) {
  if (state.store == nullptr || !MayUseCache(state, s)) return Begun::kNothing;
  SequenceLoad& load = s.load;
  BlockPool& blocks = state.memory->blocks();
  const std::span<const BlockKey> keys = UsefulKeys(s);
  const uint16_t max_gen = AcceptedGen(state, s);
  const int64_t in_memory = blocks.CountHit(keys, max_gen);
  const auto missing = keys.subspan(static_cast<size_t>(in_memory));
  load.miss = MissReason::kNone;
  if (missing.empty()) return Begun::kNothing;
  LookupResult found = state.store->Lookup(missing, max_gen);
  load.miss = found.reason;
  const auto stored = static_cast<int64_t>(found.blocks.size());
  const int64_t now_us = state.clock->NowUs();
  if (in_memory + stored < load.num_expected && now_us < load.expected_until_us) {
    load.next_look_us = std::min(now_us + kExpectLookUs, load.expected_until_us);
    return Begun::kWaits;
  }
  if (stored == 0) return Begun::kNothing;
  int64_t wait_us = 0;
  const MissReason refusal = Judge(state, s, in_memory, stored, &wait_us);
  if (refusal != MissReason::kNone) {
    load.miss = refusal;
    return Begun::kNothing;
  }
  if (load.deadline_us == 0) load.deadline_us = now_us + wait_us;
  if (IsLoading(state, s, in_memory) || !HasRoom(state, stored)) return Begun::kWaits;
  load.from_peer.clear();
  for (BlockRequest& block : found.blocks) {
    block.block_number += static_cast<uint32_t>(in_memory);
    load.from_peer.push_back(state.store->IsPeers(block));
  }
  load.first_block = static_cast<int32_t>(in_memory);
  load.num_wanted = static_cast<int32_t>(stored);
  load.began_us = now_us;
  load.held = blocks.AcquireHit(keys.first(static_cast<size_t>(in_memory)), max_gen);
  load.handle = state.store->BeginLoad(std::move(found.blocks), load.deadline_us);
  ++state.statistics.store_loads;
  return Begun::kStarted;
}

// Puts the next arrived block into the pool; false when the pool has none to spare.
bool MoveBlock(EngineState& state, Sequence& s) {
  SequenceLoad& load = s.load;
  BlockPool& blocks = state.memory->blocks();
  const int64_t spare =
      blocks.stats().capacity / kSpareShare + static_cast<int64_t>(state.active.size());
  const int32_t block = blocks.available() > spare ? blocks.Allocate() : 0;
  if (block == 0) return false;
  const std::span<const std::byte> payload = load.handle->Payload(load.num_loaded);
  std::memcpy(state.memory->Block(block), payload.data(), payload.size());
  const BlockKey& key = UsefulKeys(s)[static_cast<size_t>(load.first_block + load.num_loaded)];
  if (blocks.Publish(block, key, load.handle->replay_gen(load.num_loaded))) {
    load.held.push_back(block);
  } else {
    // Computed meanwhile: the one in the index serves.
    blocks.ReleaseChain({&block, 1});
    constexpr uint16_t kAnyGen = std::numeric_limits<uint16_t>::max();
    load.held.push_back(blocks.AcquireHit({&key, 1}, kAnyGen).front());
  }
  ++load.num_loaded;
  return true;
}

// True when the load is over.
bool Advance(EngineState& state, Sequence& s) {
  SequenceLoad& load = s.load;
  const int64_t ready = load.handle->Poll(state.clock->NowUs());
  for (int32_t i = 0; i < kMaxMovedBlocks && load.num_loaded < ready; ++i) {
    if (!MoveBlock(state, s)) return true;
  }
  return load.handle->done() && load.num_loaded == ready;
}

void NoteLoad(EngineState& state, Sequence& s) {
  const SequenceLoad& load = s.load;
  const int64_t now_us = state.clock->NowUs();
  const bool is_late = load.handle->failure() == MissReason::kDeadline;
  const int64_t ended_us = is_late ? now_us : load.handle->last_arrival_us();
  const int64_t elapsed_us = std::max<int64_t>(0, ended_us - load.began_us);
  // Those of the first token.
  if (!s.was_parked()) {
    s.counters.load_after_us = load.began_us - s.schedule.submitted_us;
    s.counters.load_us += elapsed_us;
  }
  s.counters.disk_read_bytes += load.num_loaded * state.memory->layout().block_bytes;
  state.statistics.store_load_seconds.Observe(static_cast<double>(elapsed_us) * 1e-6);
  state.statistics.store_loads_partial += load.num_loaded < load.num_wanted;
  // A load of which nothing came says at least how slow one block is.
  const int32_t blocks = std::max(load.num_loaded, is_late ? 1 : 0);
  if (blocks > 0) state.load_time.Observe(int64_t{blocks} * kBlockTokens, elapsed_us, now_us);
}

// A new request waits for its turn, one that has begun for its memory.
void Line(EngineState& state, Sequence& s) {
  if (!s.resumes()) return Enqueue(state, s);
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
}

void StopWaiting(EngineState& state, Sequence& s) {
  AbandonLoad(state, s);
  Line(state, s);
}

}  // namespace

void BeginWaiting(EngineState& state, Sequence& s) {
  SequenceLoad& load = s.load;
  load.was_tried = true;
  if (load.num_expected > 0) load.expected_until_us = state.clock->NowUs() + kExpectUs;
  if (Begin(state, s) == Begun::kNothing) return Line(state, s);
  s.state = SequenceState::kLoading;
  state.loading.push_back(&s);
}

bool BeginReload(EngineState& state, Sequence& s) {
  if (s.load.was_tried) return false;
  s.load = SequenceLoad();
  s.load.was_tried = true;
  if (Begin(state, s) == Begun::kNothing) return false;
  std::erase(state.parked, &s);
  s.state = SequenceState::kLoading;
  state.loading.push_back(&s);
  return true;
}

void PollLoads(EngineState& state) {
  if (state.loading.empty()) return;
  bool is_loading = false, has_ended = false;
  const std::vector<Sequence*> all = state.loading;
  for (Sequence* s : all) {
    if (s->load.handle == nullptr) continue;
    if (!Advance(state, *s)) {
      is_loading = true;
      continue;
    }
    SequenceLoad& load = s->load;
    NoteLoad(state, *s);
    if (load.num_loaded < load.num_wanted) {
      load.handle->Cancel();
      load.miss = load.handle->failure();
    }
    has_ended = true;
    StopWaiting(state, *s);
  }
  const int64_t now_us = state.clock->NowUs();
  for (Sequence* s : all) {
    if (s->state != SequenceState::kLoading || s->load.handle != nullptr) continue;
    if (s->load.deadline_us != 0 && now_us >= s->load.deadline_us) {
      s->load.miss = MissReason::kDeadline;
      StopWaiting(state, *s);
    } else if ((has_ended || !is_loading) && now_us >= s->load.next_look_us &&
               Begin(state, *s) == Begun::kNothing) {
      StopWaiting(state, *s);
    }
  }
}

void AbandonLoad(EngineState& state, Sequence& s) {
  s.load.handle.reset();
  state.memory->blocks().ReleaseChain(s.load.held);
  s.load.held.clear();
  std::erase(state.loading, &s);
}

}  // namespace deepinfer
