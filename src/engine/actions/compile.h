// Waiting for the grammar of a request: from the compile pool to the sequence
// (structured_outputs.md §6).
// Thread rule: engine thread.
#pragma once

#include <vector>

#include "engine/engine_state.h"

namespace deepinfer {

// A sequence whose grammar is compiled, or will never be.
struct CompiledSequence {
  Sequence* sequence = nullptr;
  Status status;
};

// Makes the sequence wait in kPending. Its ticket was taken on submission.
void BeginCompile(EngineState& state, Sequence& s);

// Takes those that need wait no longer out of state.compiling, in order of arrival, and asks for
// the fallbacks of those that were refused. `wake` is called when one of these is ready.
std::vector<CompiledSequence> TakeCompiled(EngineState& state, const std::function<void()>& wake);

}  // namespace deepinfer
