// When each part of a step began and ended, for profiles.
// Thread rule: values.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace deepinfer {

// Times on the monotonic clock. The engine thread plans and processes while the step thread runs
// other steps.
struct StepTrace {
  int64_t number = 0;
  int32_t num_sequences = 0;
  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
  double predicted_us = 0;

  int64_t plan_us = 0;       // engine thread: planning begins
  int64_t launched_us = 0;   // and ends
  int64_t begin_us = 0;      // step thread: memory copies begin
  int64_t copied_us = 0;     // drafts and the model begin
  int64_t computed_us = 0;   // sampling begins
  int64_t end_us = 0;        // the results are there
  int64_t process_us = 0;    // engine thread: taking over the results begins
  int64_t processed_us = 0;  // and ends
};

inline constexpr int32_t kMaxProfileSteps = 50;

// Receives the steps of a profile, once. Must not block.
using ProfileSink = std::function<void(std::vector<StepTrace>)>;

}  // namespace deepinfer
