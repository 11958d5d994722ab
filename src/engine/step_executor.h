// Runs steps in the order in which they are launched: drafts, forward pass, sampling. Asynchronous:
// on a thread of its own, so that the engine thread post-processes a step while the next one runs.
// Synchronous: inside Wait, with equal results.
//
// Thread rule: Launch and Wait on the engine thread. Owner: Engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "engine/drafter.h"
#include "engine/side_work.h"
#include "engine/step_job.h"
#include "engine/token_decision.h"
#include "model/model.h"

namespace deepinfer {

class StepExecutor {
 public:
  // model and clock are borrowed. Without a thread to be had it runs synchronously.
  StepExecutor(Model* model, const EngineOptions& options, const Clock* clock);
  // Every launched job must have been waited for.
  ~StepExecutor();

  bool asynchronous() const { return thread_.joinable(); }

  void Launch(std::unique_ptr<StepJob> job);
  // The earliest launched job once it has run. Precondition: a job was launched and not waited for.
  std::unique_ptr<StepJob> Wait();

 private:
  void Loop();
  void Run(StepJob* job);
  // Finds where a decode item begins; an ended sequence has no more rows.
  void Place(StepItem* item) const;
  void MakeDrafts(StepJob* job);
  void RunRows(StepJob* job);
  // Lets helpers compute the token masks behind the drafts made so far, until masks_.Finish().
  void BeginMasks(StepJob* job);
  // From logits to tokens, on several threads where that is worth it.
  void RunItems(StepJob* job);
  static void RunItem(StepItem* item, DecisionContext* decisions);
  // What stays of the rows of an item that succeeded, and the window state it passed.
  static void NoteProgress(StepItem* item);
  void KeepContext(StepJob* job);

  Model* model_;
  const Clock* clock_;
  std::optional<Drafter> drafter_;
  StepOutput output_;  // reused between steps
  DecisionContext decisions_;
  ThreadPool* const pool_;                         // may be null
  std::vector<DecisionContext> spread_decisions_;  // one for each thread that decides
  SideWork masks_;
  std::vector<StepItem*> masked_;  // the items whose masks are computed

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<StepJob>> launched_;
  std::deque<std::unique_ptr<StepJob>> finished_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
