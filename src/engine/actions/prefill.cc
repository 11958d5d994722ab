#include "engine/actions/prefill.h"

#include <algorithm>

#include "base/result.h"

namespace deepinfer {

namespace {
// Rows whose full logits are held at once for prompt log-probabilities.
constexpr int32_t kLogprobRows = 64;
}  // namespace

Status PrefillAction::Step(StepState* state) {
  Sequence& s = *state->sequence;
  const bool all_logits = s.request.sampling.prompt_logprobs;
  const int32_t limit = all_logits ? std::min(max_rows_, kLogprobRows) : max_rows_;
  const int32_t num_rows = std::min(limit, s.prompt_len - s.num_computed);
  SequenceStep step = MakeSequenceStep(s, num_rows);
  const bool last = s.num_computed + num_rows == s.prompt_len;
  if (all_logits) {
    step.logits_from = step.start;
  } else if (last) {
    step.logits_from = s.prompt_len - 1;
  }
  DI_RETURN_IF_ERROR(RunStep(state, step));
  s.counters.computed_tokens += num_rows;

  const std::span<float> logits(state->output.logits);
  const size_t vocab = static_cast<size_t>(state->model->config().vocab_size);
  if (all_logits) {
    for (int32_t p = step.start; p < s.num_computed && p + 1 < s.prompt_len; ++p) {
      s.prompt_logprobs.push_back(
          RawLogprobs(logits.subspan(static_cast<size_t>(p - step.start) * vocab, vocab),
                      s.tokens[static_cast<size_t>(p + 1)], s.request.sampling.num_top_logprobs));
    }
  }
  if (!last) return OkStatus();
  DI_RETURN_IF_ERROR(SampleToken(state, logits.last(vocab)));
  state->event.prompt_logprobs = std::move(s.prompt_logprobs);
  return OkStatus();
}

}  // namespace deepinfer
