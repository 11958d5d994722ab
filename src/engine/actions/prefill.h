// Runs the next chunk of a prompt; the last chunk samples the first token.
// Thread rule: step thread.
#pragma once

#include "engine/actions/action.h"

namespace deepinfer {

class PrefillAction final : public Action {
 public:
  // max_rows: rows of one chunk.
  explicit PrefillAction(int32_t max_rows) : max_rows_(max_rows) {}

  Status Step(StepState* state) override;

 private:
  int32_t max_rows_;
};

}  // namespace deepinfer
