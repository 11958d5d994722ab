#include "engine/flight_record.h"

#include <algorithm>

namespace deepinfer {

void FlightRecord::Add(const StepJob& job) {
  Step& step = steps_[num_steps_++ % kSteps];
  step.number = job.number;
  step.launched_us = job.begin_us;
  step.num_items = static_cast<int32_t>(job.items.size());
  step.prefill_rows = static_cast<int32_t>(job.rows.prefill_rows);
  step.decode_rows = static_cast<int32_t>(job.rows.decode_rows);
  step.predicted_us = static_cast<int64_t>(job.predicted_us);
  step.measured_us = job.end_us - job.begin_us;
}

std::string FlightRecord::Describe(size_t count) const {
  std::string text;
  const size_t known = std::min(num_steps_, kSteps);
  for (size_t i = num_steps_ - std::min(count, known); i < num_steps_; ++i) {
    const Step& s = steps_[i % kSteps];
    text += "step " + std::to_string(s.number) + ": " + std::to_string(s.num_items) +
            " sequences, " + std::to_string(s.prefill_rows) + " prefill and " +
            std::to_string(s.decode_rows) + " decode rows, predicted " +
            std::to_string(s.predicted_us) + " us, took " + std::to_string(s.measured_us) + " us\n";
  }
  return text;
}

}  // namespace deepinfer
