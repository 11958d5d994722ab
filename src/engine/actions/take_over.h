// Continues a sequence that another engine began: it enters as a parked one whose image came with
// the request or is lost (architecture.md §8).
// Thread rule: engine thread, CheckResumePoint any.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// invalid_request when the origin is nonsense, or the image does not have the size of the positions
// it stands for.
Status CheckResumePoint(const Model& model, const EngineRequest& request);

// Precondition: request.resume holds a checked resume point. invalid_request when the grammar of
// the request does not allow the tokens produced so far.
Status TakeOver(EngineState& state, Sequence& s);

}  // namespace deepinfer
