#include "engine/actions/prefill.h"

#include <algorithm>
#include <iterator>

#include "engine/actions/action.h"
#include "engine/cut_rows.h"

namespace deepinfer {

namespace {

// Rows whose full logits are held at once for prompt log-probabilities.
constexpr int32_t kLogprobRows = 64;

// The block edges of a prompt at which its encoder windows are kept, ascending: where the request
// says that later ones part from it, and the last one that a later hit on the same prompt can use;
// but none at which rows of the window are missing, or not yet as exact as replay_gen says.
std::vector<int32_t> SnapshotEdges(const EngineState& state, const Sequence& s) {
  // Windows of rows that come with the cut are those of its end.
  if (!KeepsSnapshots(state) || s.rebuild_end > 0 || s.begins_at_cut()) return {};
  std::vector<int32_t> edges = s.request.state_at;
  if (KeepsAll(s)) edges.push_back(s.prompt_len - state.memory->geometry().keep_rows);
  for (int32_t& edge : edges) edge = edge / kBlockTokens * kBlockTokens;
  std::erase_if(edges, [&](int32_t edge) { return edge <= 0 || edge < s.cache.whole_from; });
  std::sort(edges.begin(), edges.end());
  return edges;
}

// Where the rows at the cut of a prompt that is split there go or come from.
void SetCutRows(const EngineState& state, Sequence& s, SequenceStep* rows) {
  std::vector<float>& cut = s.device.cut_rows;
  const bool leaves = s.request.hand_off == HandOffProfile::kEncoder;
  if (!leaves && cut.empty()) return;
  const int64_t floats = CutRowFloats(state.model->config());
  const int32_t origin = s.cache.decoder_origin;
  if (cut.empty()) cut.resize(static_cast<size_t>((s.prompt_len - origin) * floats));
  float* const at = cut.data() + std::max(0, rows->start - origin) * floats;
  if (leaves) {
    rows->cut_out = at;
  } else {
    rows->cut_in = at;
  }
}

// Every row of the prompt once: not those that run again after a lost image, nor those from the
// cut, which were counted where their other half ran.
void CountRows(EngineState& state, Sequence& s) {
  const int32_t num_new = std::min(s.computed, s.prompt_len) - s.counted;
  if (num_new <= 0) return;
  s.counted += num_new;
  s.counters.computed_tokens += num_new;
  state.statistics.computed_tokens += num_new;
}

}  // namespace

std::vector<int32_t> PrefillCuts(const EngineState& state, const Sequence& s) {
  if (s.wants_prompt_logprobs()) return {s.launched + kLogprobRows};
  return SnapshotEdges(state, s);
}

void LaunchPrefill(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job) {
  const int32_t start = s.launched;
  if (s.begins_at_cut()) {
    state.cost().AddDecoderRows(start, start + num_rows, &job->rows);
  } else {
    state.cost().AddPrefill(start, start + num_rows, s.cost_decoder_from(), &job->rows);
  }
  StepItem& item = AddItem(state, s, num_rows, job);
  if (s.wants_prompt_logprobs() && s.rebuild_end == 0) {
    item.wants_prompt_logprobs = true;
    item.rows.logits_from = start;
  }
  SetCutRows(state, s, &item.rows);
  const std::vector<int32_t> edges = SnapshotEdges(state, s);
  if (std::binary_search(edges.begin(), edges.end(), item.end())) {
    item.snapshot_bytes = state.memory->encoder_ring_bytes();
  }
  s.schedule.skipped_steps = 0;
  s.schedule.skipped_since_us = 0;
}

std::optional<TokenEvent> ProcessPrefill(EngineState& state, StepItem* item) {
  Sequence& s = *item->sequence;
  s.computed = item->end();
  CountRows(state, s);
  PublishBlocks(state, s);
  if (item->snapshot != nullptr) KeepSnapshot(state, s, *item->snapshot);
  s.prompt_logprobs.insert(s.prompt_logprobs.end(),
                           std::make_move_iterator(item->prompt_logprobs.begin()),
                           std::make_move_iterator(item->prompt_logprobs.end()));
  const int64_t now_us = state.clock->NowUs();
  if (s.num_generated == 0) s.counters.prefill_us = now_us - s.schedule.started_us;
  if (s.computed < s.prefill_end()) return std::nullopt;
  s.rebuild_end = 0;
  // Megabytes that no row reads any more; those of a prompt that is handed over leave with it.
  if (!s.hands_over_undecided()) s.device.cut_rows = std::vector<float>();
  if (s.state != SequenceState::kParking) s.state = SequenceState::kRunning;
  if (!item->decides_token) return std::nullopt;
  s.schedule.prefilled_us = now_us;
  std::optional<TokenEvent> event = TakeTokens(state, item);
  if (event) event->prompt_logprobs = std::move(s.prompt_logprobs);
  return event;
}

}  // namespace deepinfer
