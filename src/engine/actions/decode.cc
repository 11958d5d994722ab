#include "engine/actions/decode.h"

#include <algorithm>

#include "engine/actions/action.h"

namespace deepinfer {

int32_t NumDecodeRows(const EngineState& state, const Sequence& s) {
  const int32_t block_end = (s.launched / kBlockTokens + 1) * kBlockTokens;
  const int32_t limit = std::min(block_end - s.launched, state.options.max_num_batched_tokens);
  return std::clamp(s.known_end() - s.launched, 1, limit);
}

void LaunchDecode(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job) {
  state.cost().AddDecode(s.launched, num_rows, &job->rows);
  StepItem& item = AddItem(state, s, num_rows, job);
  // The next turn of a conversation continues at the last edge of this answer.
  if (KeepsSnapshots(state) && item.end() % kBlockTokens == 0) {
    item.snapshot = NewSnapshot(state, item.end());
  }
}

std::optional<TokenEvent> ProcessDecode(EngineState& state, StepItem* item) {
  Sequence& s = *item->sequence;
  s.computed = item->end();
  PublishBlocks(state, s);
  if (item->snapshot != nullptr) s.cache.last_edge = std::move(item->snapshot);
  s.counters.decode_us = state.clock->NowUs() - s.schedule.prefilled_us;
  return TakeTokens(state, item);
}

}  // namespace deepinfer
