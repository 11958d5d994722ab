#include "engine/actions/decode.h"

#include "engine/actions/action.h"

namespace deepinfer {

void LaunchDecode(EngineState& state, Sequence& s, StepJob* job) {
  state.cost().AddDecode(s.launched, 1, &job->rows);
  StepItem& item = AddItem(state, s, 1, job);
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
  return TakeToken(state, item);
}

}  // namespace deepinfer
