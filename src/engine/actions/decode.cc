#include "engine/actions/decode.h"

#include <algorithm>

#include "engine/actions/action.h"
#include "engine/speculation.h"

namespace deepinfer {

namespace {

// Rows kept free for tokens that a grammar forces meanwhile: as many as drafts get.
constexpr auto kLikelyForced = static_cast<int32_t>(kMaxDraftTokens);

}  // namespace

DecodeRowCount CountDecodeRows(const EngineState& state, const Sequence& s) {
  const int32_t limit = std::max(1, state.options.max_num_batched_tokens);
  const int32_t num_known = std::clamp(s.known_end() - (s.launched - s.unsure), 1, limit);
  const int32_t num_drafts = num_known > 1 ? 0 : std::min(MaxDrafts(state, s), limit - 1);
  // The step before may force tokens that are not known yet.
  const int32_t num_forced = std::min({s.device.max_forced, kLikelyForced, limit - num_known});
  return {num_known + std::max(num_drafts, num_forced),
          num_known + std::min(num_drafts, UsualDrafts(state))};
}

int32_t FurthestEnd(const EngineState& state, const Sequence& s, int32_t num_rows) {
  return std::min(s.launched + num_rows, s.max_positions(state.options.max_model_len));
}

void LaunchDecode(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job) {
  StepItem& item = AddItem(state, s, FurthestEnd(state, s, num_rows) - s.launched, job);
  item.is_decode = true;
  item.max_drafts = num_rows - 1;
  item.may_draft = MaxDrafts(state, s) > 0;
  item.draft_try = s.drafts.draft_try;
  item.decides_token = true;
  // One row stays for sure.
  s.unsure += item.launched_rows - 1;
  // The next turn of a conversation continues at the last edge of this answer.
  if (KeepsSnapshots(state) && KeepsAll(s))
    item.snapshot_bytes = state.memory->encoder_ring_bytes();
}

std::optional<TokenEvent> ProcessDecode(EngineState& state, StepItem* item) {
  Sequence& s = *item->sequence;
  s.launched += item->num_committed - item->launched_rows;
  s.unsure -= item->launched_rows - 1;
  s.computed += item->num_committed;
  ObserveDrafts(state, *item);
  PublishBlocks(state, s);
  if (item->snapshot != nullptr) s.cache.last_edge = std::move(item->snapshot);
  s.counters.decode_us = state.clock->NowUs() - s.schedule.prefilled_us;
  return TakeTokens(state, item);
}

}  // namespace deepinfer
