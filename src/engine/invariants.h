// What must hold of an engine between steps (docs/architecture.md section 8), and what a breach
// brings: a log line and a count, in builds that check every step also the end of the process.
// Thread rule: engine thread.
#pragma once

#include "base/status.h"
#include "engine/engine_state.h"
#include "engine/step_job.h"

namespace deepinfer {

// Debug builds and those with test hooks. Others look when the last sequence has ended.
#if defined(DEEPINFER_TEST_HOOKS) || !defined(NDEBUG)
inline constexpr bool kChecksEveryStep = true;
#else
inline constexpr bool kChecksEveryStep = false;
#endif

// All return internal with the first breach found.

// Memory: every block has as many references as entries of block tables and loads, block 0 and
// blocks of the free list none; every slot has one holder; complete blocks are the ones that the
// keys of their sequence name. Progress: nothing was computed that was not launched.
Status CheckState(const EngineState& state);

// Rows of a step that ended, before their results are taken: they follow what was computed, see no
// window key below their clamp and no block that is not there, and write to open blocks of their
// own only: neither replayed rows nor any other changed what others share.
Status CheckRows(const EngineState& state, const StepJob& job);

// Of an engine without sequences whose pins are back: nothing is held and nothing waits.
Status CheckIdle(const EngineState& state);

void ReportBreach(EngineState& state, const Status& breach);

// Between steps.
void CheckStep(EngineState& state);
// CheckState and CheckIdle, once after the last sequence ended.
void SweepIdle(EngineState& state);

}  // namespace deepinfer
