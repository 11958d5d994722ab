#include "engine/actions/action.h"

#include <algorithm>

#include "base/result.h"

namespace deepinfer {

SequenceStep MakeSequenceStep(const Sequence& sequence, int32_t num_rows) {
  SequenceStep step;
  step.tokens = sequence.tokens.data();
  step.start = sequence.num_computed;
  step.num_rows = num_rows;
  step.decoder_from = sequence.decoder_origin;
  step.decoder_origin = sequence.decoder_origin;
  step.logits_from = sequence.num_computed + num_rows;
  step.block_table = sequence.cache.block_table.data();
  step.pool = sequence.cache.pool;
  step.slot = sequence.cache.slot;
  return step;
}

Status RunStep(StepState* state, const SequenceStep& step) {
  DI_RETURN_IF_ERROR(state->model->Step({&step, 1}, false, &state->output));
  DI_RETURN_IF_ERROR(state->output.status[0]);
  state->sequence->num_computed += step.num_rows;
  return OkStatus();
}

Status SampleToken(StepState* state, std::span<float> logits) {
  Sequence& s = *state->sequence;
  const auto& forced = s.request.forced_ids;
  const size_t index = static_cast<size_t>(s.num_generated);
  SampleRow row;
  row.logits = logits;
  row.position = s.num_computed;
  if (index < forced.size()) row.forced_id = forced[index];
  DI_ASSIGN_OR_RETURN(SampledToken token, s.sampler.Sample(row, &state->sampler_scratch));
  s.sampler.Commit(token.id);
  s.tokens.push_back(token.id);
  state->event = {};
  state->event.start_index = s.num_generated;
  state->event.ids = {token.id};
  if (s.request.sampling.num_top_logprobs >= 0) {
    state->event.logprobs = {std::move(token.logprobs)};
  }
  ++s.num_generated;
  s.counters.generated_tokens = s.num_generated;
  return OkStatus();
}

}  // namespace deepinfer
