#include "engine/actions/decode.h"

#include "base/result.h"

namespace deepinfer {

Status DecodeAction::Step(StepState* state) {
  SequenceStep step = MakeSequenceStep(*state->sequence, 1);
  step.logits_from = step.start;
  DI_RETURN_IF_ERROR(RunStep(state, step));
  return SampleToken(state, state->output.logits);
}

}  // namespace deepinfer
