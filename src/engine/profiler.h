// Collects the traces of the next steps for whoever asked.
// Thread rule: engine thread. Owner: Engine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step_job.h"
#include "engine/step_trace.h"

namespace deepinfer {

struct ProfileRequest {
  int32_t num_steps = 0;
  int64_t deadline_us = 0;  // ends with the steps it has
  ProfileSink done;
};

class Profiler {
 public:
  // A profile still running ends with the steps it has.
  void Start(ProfileRequest request);
  // A step whose results the engine thread took over from process_us to processed_us.
  void Add(const StepJob& job, int64_t process_us, int64_t processed_us);
  // Ends the profile when its deadline has passed.
  void Look(int64_t now_us);
  // Ends the profile, if one runs.
  void End();

 private:
  ProfileRequest request_;
  std::vector<StepTrace> steps_;
};

}  // namespace deepinfer
