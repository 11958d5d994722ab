#include "engine/profiler.h"

#include <utility>

namespace deepinfer {

void Profiler::Start(ProfileRequest request) {
  End();
  request_ = std::move(request);
}

void Profiler::Add(const StepJob& job, int64_t process_us, int64_t processed_us) {
  if (request_.done == nullptr) return;
  StepTrace& step = steps_.emplace_back();
  step.number = job.number;
  step.num_sequences = static_cast<int32_t>(job.items.size());
  step.prefill_rows = job.rows.prefill_rows;
  step.decode_rows = job.rows.decode_rows;
  step.predicted_us = job.predicted_us;
  step.plan_us = job.plan_us;
  step.launched_us = job.launched_us;
  step.begin_us = job.begin_us;
  step.copied_us = job.copied_us;
  step.computed_us = job.copied_us + job.draft_us + job.model_us;
  step.end_us = job.end_us;
  step.process_us = process_us;
  step.processed_us = processed_us;
  if (static_cast<int32_t>(steps_.size()) >= request_.num_steps) End();
}

void Profiler::Look(int64_t now_us) {
  if (now_us >= request_.deadline_us) End();
}

void Profiler::End() {
  const ProfileSink done = std::exchange(request_.done, nullptr);
  if (done != nullptr) done(std::exchange(steps_, {}));
}

}  // namespace deepinfer
