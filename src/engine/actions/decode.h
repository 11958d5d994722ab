// The row of the last decided token, which decides the next one, behind those of tokens before it
// that were known without their rows, or before rows of drafts, which may decide more.
// Thread rule: engine thread.
#pragma once

#include <optional>

#include "engine/engine_state.h"

namespace deepinfer {

// Rows of the next step: those of all known tokens, or one and those of drafts.
struct DecodeRowCount {
  int32_t most = 1;
  int32_t likely = 1;  // with the drafts that requests verified lately
};
DecodeRowCount CountDecodeRows(const EngineState& state, const Sequence& s);

// One past the last position that num_rows more rows can reach: blocks are needed up to there.
int32_t FurthestEnd(const EngineState& state, const Sequence& s, int32_t num_rows);

// The step finds out where the rows begin and how many of num_rows run, at least one.
void LaunchDecode(EngineState& state, Sequence& s, int32_t num_rows, StepJob* job);

// Takes over the results of rows that succeeded; no event when no token was decided.
std::optional<TokenEvent> ProcessDecode(EngineState& state, StepItem* item);

}  // namespace deepinfer
