#include "engine/actions/prefill.h"

#include <iterator>

#include "engine/actions/action.h"

namespace deepinfer {

namespace {

// Rows whose full logits are held at once for prompt log-probabilities.
constexpr int32_t kLogprobRows = 64;

// The block edge of a prompt at which its encoder windows are kept, 0 for none: the last one that a
// later hit on the same prompt can use.
int32_t SnapshotEdge(const EngineState& state, const Sequence& s) {
  if (!KeepsSnapshots(state) || s.rebuild_end > 0) return 0;
  const int32_t last = s.prompt_len - state.memory->geometry().keep_rows;
  const int32_t edge = last / kBlockTokens * kBlockTokens;
  return edge > s.cache.first_row ? edge : 0;
}

}  // namespace

std::vector<int32_t> PrefillCuts(const EngineState& state, const Sequence& s) {
  if (s.wants_prompt_logprobs()) return {s.launched + kLogprobRows};
  const int32_t edge = SnapshotEdge(state, s);
  return edge > s.launched ? std::vector<int32_t>{edge} : std::vector<int32_t>{};
}

void LaunchPrefill(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job) {
  const int32_t start = s.launched;
  state.cost().AddPrefill(start, start + num_rows, s.cache.decoder_from, &job->rows);
  StepItem& item = AddItem(state, s, num_rows, job);
  if (s.wants_prompt_logprobs() && s.rebuild_end == 0) {
    item.wants_prompt_logprobs = true;
    item.rows.logits_from = start;
  }
  if (item.end() == SnapshotEdge(state, s)) item.snapshot = NewSnapshot(state, item.end());
  s.schedule.skipped_steps = 0;
  s.schedule.skipped_since_us = 0;
}

std::optional<TokenEvent> ProcessPrefill(EngineState& state, StepItem* item) {
  Sequence& s = *item->sequence;
  s.computed = item->end();
  if (s.rebuild_end == 0) {
    s.counters.computed_tokens += item->rows.num_rows;
    state.statistics.computed_tokens += item->rows.num_rows;
  }
  PublishBlocks(state, s);
  if (item->snapshot != nullptr) KeepSnapshot(state, s, *item->snapshot);
  s.prompt_logprobs.insert(s.prompt_logprobs.end(),
                           std::make_move_iterator(item->prompt_logprobs.begin()),
                           std::make_move_iterator(item->prompt_logprobs.end()));
  const int64_t now_us = state.clock->NowUs();
  if (s.num_generated == 0) s.counters.prefill_us = now_us - s.schedule.started_us;
  if (s.computed < s.prefill_end()) return std::nullopt;
  s.rebuild_end = 0;
  if (s.state != SequenceState::kParking) s.state = SequenceState::kRunning;
  if (!item->decides_token) return std::nullopt;
  s.schedule.prefilled_us = now_us;
  TokenEvent event = TakeToken(state, item);
  event.prompt_logprobs = std::move(s.prompt_logprobs);
  return event;
}

}  // namespace deepinfer
