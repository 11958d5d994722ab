// The learned step times of a worker on disk, so that its next start predicts at once.
// Thread rule: one caller at a time.
#pragma once

#include <string>

#include "base/status.h"
#include "sched/step_time_model.h"

namespace deepinfer {

// Reads what SaveStepTimes wrote. not_found: no such file; invalid_request: not one of ours.
Result<StepTimeModel> LoadStepTimes(const std::string& path);

// Replaces the file in one step; its folder is made. unavailable when that fails.
Status SaveStepTimes(const std::string& path, const StepTimeModel& model);

}  // namespace deepinfer
