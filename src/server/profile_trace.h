// Steps of a profile in the trace format that chrome://tracing and Perfetto open.
// Thread rule: pure function.
#pragma once

#include <span>
#include <string>

#include "engine/step_trace.h"

namespace deepinfer {

// {"displayTimeUnit":"ms","traceEvents":[...]}: complete events in microseconds from the first one,
// the engine thread as tid 1 and the step thread as tid 2.
std::string ChromeTrace(std::span<const StepTrace> steps);

}  // namespace deepinfer
