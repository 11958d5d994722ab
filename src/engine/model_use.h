// How evenly rows are spread over experts, and how fast the model's operations run: gauges over
// recent steps.
// Thread rule: engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/statistics.h"
#include "engine/step_job.h"

namespace deepinfer {

class ModelUse {
 public:
  // Steps of one window of expert loads, as in the released engine.
  static constexpr int32_t kWindowSteps = 100;

  explicit ModelUse(int32_t num_experts) : num_experts_(num_experts) {}

  // Of a step that ran.
  void Note(const StepJob& job, EngineStatistics* statistics);

 private:
  void NoteExperts(const std::vector<int32_t>& rows, EngineStatistics* statistics);

  const int32_t num_experts_;
  std::vector<int64_t> expert_rows_;  // [layers, experts], of the window so far
  int32_t num_steps_ = 0;             // in it
  double flops_ = 0;                  // of recent steps, older ones fading
  double seconds_ = 0;                // the same of their time
};

}  // namespace deepinfer
