// When a token ends its request. One rule for the thread that runs steps, which must not decide
// tokens behind the last one, and for the engine thread, which reports the reason.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "engine/request.h"

namespace deepinfer {

struct EndRule {
  int32_t end_id = -1;  // the model's end token
  int32_t max_model_len = 0;
};

// What the id as the num_generated-th token of the answer means for the request; kNone: it goes on.
// stop_token_id becomes the id where it is the reason.
FinishReason EndAfterToken(const EngineRequest& request, const EndRule& rule, int32_t num_generated,
                           int32_t id, int32_t* stop_token_id);

}  // namespace deepinfer
