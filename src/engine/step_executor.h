// Runs steps in the order in which they are launched: forward pass, then sampling. Asynchronous: on
// a thread of its own, so that the engine thread post-processes a step while the next one runs.
// Synchronous: inside Wait, with equal results.
//
// Thread rule: Launch and Wait on the engine thread. Owner: Engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "engine/step_job.h"
#include "model/model.h"

namespace deepinfer {

class StepExecutor {
 public:
  // model and clock are borrowed. Without a thread to be had it runs synchronously.
  StepExecutor(Model* model, const Clock* clock, bool asynchronous);
  // Every launched job must have been waited for.
  ~StepExecutor();

  bool asynchronous() const { return thread_.joinable(); }

  void Launch(std::unique_ptr<StepJob> job);
  // The earliest launched job once it has run; nullptr when that takes longer than the limit.
  // Precondition: a job was launched and not waited for.
  std::unique_ptr<StepJob> Wait(std::chrono::milliseconds limit);

 private:
  void Loop();
  void Run(StepJob* job);
  void RunItem(StepItem* item, std::span<float> logits);
  Status DecideToken(StepItem* item, std::span<float> logits);
  // Appends tokens as long as the grammar leaves no choice.
  Status AppendForced(StepItem* item);
  // Makes a token part of the output.
  static Status Take(SampledToken token, StepItem* item);

  Model* model_;
  const Clock* clock_;
  StepOutput output_;  // reused between steps
  SamplerScratch scratch_;
  int64_t grammar_us_ = 0;  // of the running job

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<StepJob>> launched_;
  std::deque<std::unique_ptr<StepJob>> finished_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
