#include "engine/actions/load_hit.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/actions/store_blocks.h"

namespace deepinfer {

uint16_t MaxReplayGen(const EngineState& state) {
  return state.options.replay == ReplayMode::kExact ? 0 : state.options.max_replay_gen;
}

uint16_t ReplaceAboveGen(const EngineState& state) {
  const uint16_t max_gen = MaxReplayGen(state);
  if (max_gen == kAnyReplayGen) return kAnyReplayGen;
  // A bounded replay behind a block of the highest generation would pass it.
  return max_gen == 0 ? 0 : static_cast<uint16_t>(max_gen - 1);
}

bool MayUseCache(const EngineState& state, const Sequence& s) {
  // Without the decoder tail every row must run for its logits or its decoder windows.
  return state.options.prefix_cache && !s.wants_prompt_logprobs() &&
         state.options.decoder_tail == DecoderTail::kCompact;
}

std::span<const BlockKey> PromptKeys(const Sequence& s) {
  const auto& keys = s.cache.chain.keys();
  // A prompt that ends before its tail has a row of its own to run.
  const int32_t end =
      s.request.hand_off == HandOffProfile::kTail ? std::max(1, s.prompt_end()) - 1 : s.prompt_len;
  return {keys.data(), std::min(keys.size(), static_cast<size_t>(end / kBlockTokens))};
}

namespace {

std::optional<SwaSnapshot> FindSnapshot(EngineState& state, const Sequence& s, int64_t hit) {
  if (!state.options.swa_snapshots) return std::nullopt;
  const ReplayGeometry& geometry = state.memory->geometry();
  const int64_t bound = SnapshotBound(geometry, s.prompt_len, hit);
  return state.memory->swa().FindSnapshot(
      PromptKeys(s), kBlockTokens,
      std::max<int64_t>(kBlockTokens, bound - geometry.max_snapshot_gap), bound,
      MaxReplayGen(state), state.clock->NowUs());
}

}  // namespace

int32_t DecoderOrigin(const EngineState& state, const EngineRequest& request) {
  const bool full =
      request.sampling.prompt_logprobs || state.options.decoder_tail == DecoderTail::kFull;
  const auto prompt = static_cast<int32_t>(request.prompt_ids.size());
  return full ? 0 : std::max(0, prompt - state.memory->geometry().keep_rows);
}

void SetTail(const EngineState& state, Sequence& s) {
  s.cache.decoder_origin = DecoderOrigin(state, s.request);
  s.cache.decoder_from = s.cache.decoder_floor = s.cache.decoder_origin;
}

HitProbe ProbeHit(EngineState& state, Sequence& s) {
  HitProbe probe;
  probe.valid = true;
  if (!MayUseCache(state, s)) return probe;
  const BlockPool& blocks = state.memory->blocks();
  const std::span<const BlockKey> keys = PromptKeys(s);
  const int64_t num_blocks = blocks.CountHit(keys, MaxReplayGen(state));
  if (num_blocks * kBlockTokens < state.options.min_hit_tokens) return probe;
  ReplayInput input;
  input.prompt_tokens = s.prompt_len;
  input.hit_tokens = num_blocks * kBlockTokens;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int32_t block = blocks.Find(keys[static_cast<size_t>(i)]);
    input.hit_replay_gen = std::max(input.hit_replay_gen, blocks.replay_gen(block));
    probe.hit_idle += blocks.state(block) == BlockState::kIdle;
  }
  if (const auto snapshot = FindSnapshot(state, s, input.hit_tokens)) {
    input.snapshot_edge = snapshot->edge;
    input.snapshot_replay_gen = snapshot->replay_gen;
  }
  probe.plan = PlanReplay(state.memory->geometry(), state.options.replay, input);
  if (probe.plan.replay_gen > state.options.max_replay_gen) {
    probe.plan = PlanReplay(state.memory->geometry(), ReplayMode::kExact, input);
  }
  probe.hit_blocks = static_cast<int32_t>(num_blocks);
  // A replay from the first row saves nothing.
  if (probe.plan.first_row == 0) {
    probe = HitProbe();
    probe.valid = true;
  }
  return probe;
}

bool Admit(EngineState& state, Sequence& s) {
  const HitProbe planned = std::exchange(s.schedule.probe, ProbeHit(state, s));
  const HitProbe& found = s.schedule.probe;
  if (!(found == planned)) return false;
  const int32_t slot = state.memory->AcquireCleanSlot();
  if (slot < 0) return false;
  PrepareDevice(state, s);
  SetTail(state, s);
  SequenceCache& c = s.cache;
  c.slot = slot;
  const ReplayPlan& plan = found.plan;
  if (found.hit_blocks > 0) {
    const std::vector<int32_t> hit = state.memory->blocks().AcquireHit(
        PromptKeys(s).first(static_cast<size_t>(found.hit_blocks)), MaxReplayGen(state));
    std::copy(hit.begin(), hit.end(), s.device.block_table.get());
    if (plan.uses_snapshot) {
      const auto snapshot = FindSnapshot(state, s, int64_t{found.hit_blocks} * kBlockTokens);
      std::memcpy(state.memory->Slot(slot), snapshot->bytes.data(), snapshot->bytes.size());
    }
  }
  c.num_blocks = c.num_published = found.hit_blocks;
  c.write_from = found.hit_blocks * kBlockTokens;
  c.window_floor = c.first_floor = static_cast<int32_t>(plan.window_clamp);
  c.first_row = static_cast<int32_t>(plan.first_row);
  c.whole_from = static_cast<int32_t>(plan.whole_from);
  c.replay_gen = plan.replay_gen;
  s.launched = s.computed = s.counted = c.first_row;
  s.counters.cached_tokens = plan.cached_tokens;
  s.counters.replayed_tokens = plan.replayed_tokens;
  s.state = SequenceState::kPrefilling;
  state.active.push_back(&s);
  KeepHit(state, s);
  return true;
}

}  // namespace deepinfer
