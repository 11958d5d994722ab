// A kind of step. Each action runs one forward of one sequence and applies its results.
// Thread rule: step thread.
#pragma once

#include "base/status.h"
#include "engine/sequence.h"
#include "model/model.h"

namespace deepinfer {

// What an action works on and reports.
struct StepState {
  Model* model = nullptr;
  Sequence* sequence = nullptr;
  StepOutput output;  // reused between steps
  SamplerScratch sampler_scratch;
  TokenEvent event;  // ids empty: nothing to deliver
};

class Action {
 public:
  virtual ~Action() = default;
  // An error ends the sequence, not the engine.
  virtual Status Step(StepState* state) = 0;
};

// The rows [num_computed, num_computed + num_rows) of a sequence as model input.
SequenceStep MakeSequenceStep(const Sequence& sequence, int32_t num_rows);

// Runs the model on one sequence; its own failure becomes the returned status.
Status RunStep(StepState* state, const SequenceStep& step);

// Samples the token after the last computed position from one row of logits, appends it and fills
// state->event.
Status SampleToken(StepState* state, std::span<float> logits);

}  // namespace deepinfer
