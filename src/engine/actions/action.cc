#include "engine/actions/action.h"

namespace deepinfer {

StepItem& AddItem(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job) {
  StepItem& item = job->items.emplace_back();
  item.sequence = &s;
  SequenceStep& r = item.rows;
  r.tokens = s.device.tokens.get();
  r.start = s.launched;
  r.num_rows = num_rows;
  r.window_floor = s.cache.window_floor;
  r.write_from = s.cache.write_from;
  r.decoder_from = s.cache.decoder_from;
  r.decoder_origin = s.cache.decoder_floor;
  r.block_table = s.device.block_table.get();
  r.pool = state.memory->pool();
  r.slot = state.memory->Slot(s.cache.slot);
  const int32_t end = s.launched + num_rows;
  item.decides_token = end >= s.known_end() && end > s.rebuild_end && !s.hands_over_undecided();
  r.logits_from = item.decides_token ? end - 1 : end;
  item.launched_rows = num_rows;
  s.launched = end;
  ++s.schedule.num_in_flight;
  return item;
}

bool KeepsSnapshots(const EngineState& state) {
  return state.options.swa_snapshots && state.options.prefix_cache;
}

std::optional<TokenEvent> TakeTokens(EngineState& state, StepItem* item) {
  Sequence& s = *item->sequence;
  if (item->tokens.empty()) return std::nullopt;
  TokenEvent event;
  event.start_index = s.num_generated;
  for (SampledToken& token : item->tokens) {
    event.ids.push_back(token.id);
    if (s.request.sampling.num_top_logprobs >= 0) {
      event.logprobs.push_back(std::move(token.logprobs));
    }
  }
  const auto num_tokens = static_cast<int32_t>(item->tokens.size());
  s.num_generated += num_tokens;
  s.counters.generated_tokens = s.num_generated;
  EngineStatistics& st = state.statistics;
  st.generated_tokens += num_tokens;
  if (s.grammar.compiled != nullptr) {
    st.masked_tokens += num_tokens - item->num_forced;
    st.forced_tokens += item->num_forced;
  }
  return event;
}

void KeepSnapshot(EngineState& state, Sequence& s, const EdgeSnapshot& snapshot) {
  const auto block = static_cast<size_t>(snapshot.edge / kBlockTokens - 1);
  if (block >= s.cache.chain.keys().size()) return;
  (void)state.memory->swa().PutSnapshot(s.cache.chain.keys()[block], snapshot.edge,
                                        s.cache.replay_gen, snapshot.rings,
                                        state.memory->layout().ring_bytes, state.clock->NowUs());
}

}  // namespace deepinfer
