// Continues a sequence that another engine began: it enters as a parked one whose image came with
// the request or is lost (architecture.md §8).
// Thread rule: engine thread, CheckResumePoint any.
#pragma once

#include "engine/engine_state.h"

namespace deepinfer {

// invalid_request when the origin is nonsense, the image does not have the size of the positions it
// stands for, or these are not where this engine would go on. Reads what never changes of the
// state.
Status CheckResumePoint(const EngineState& state, const EngineRequest& request);

// Precondition: request.resume holds a checked resume point. invalid_request when the grammar of
// the request does not allow the tokens produced so far.
Status TakeOver(EngineState& state, Sequence& s);

}  // namespace deepinfer
