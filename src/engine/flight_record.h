// The last steps of an engine, for the log when one does not come back.
// Thread rule: engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/step_job.h"

namespace deepinfer {

class FlightRecord {
 public:
  static constexpr size_t kSteps = 1000;

  void Add(const StepJob& job);
  // One line per step, oldest first, of the last `count`.
  std::string Describe(size_t count) const;

 private:
  struct Step {
    int64_t number = 0;
    int64_t launched_us = 0;
    int32_t num_items = 0;
    int32_t prefill_rows = 0;
    int32_t decode_rows = 0;
    int64_t predicted_us = 0;
    int64_t measured_us = 0;
  };

  std::array<Step, kSteps> steps_{};
  size_t num_steps_ = 0;
};

}  // namespace deepinfer
