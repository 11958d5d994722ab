// Runs the last sampled token and samples the next one.
// Thread rule: step thread.
#pragma once

#include "engine/actions/action.h"

namespace deepinfer {

class DecodeAction final : public Action {
 public:
  Status Step(StepState* state) override;
};

}  // namespace deepinfer
