// Everything the engine thread owns: sequences by state, memory, planner memory, learned times. The
// actions of engine/actions change it, each in one way.
// Thread rule: engine thread. Owner: Engine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/deadline_queue.h"
#include "engine/kv_memory.h"
#include "engine/model_use.h"
#include "engine/options.h"
#include "engine/pin_returns.h"
#include "engine/sequence.h"
#include "engine/statistics.h"
#include "engine/step_job.h"
#include "sched/admission_queue.h"
#include "sched/draft_policy.h"
#include "sched/draft_time.h"
#include "sched/load_choice.h"
#include "sched/planner.h"
#include "sched/predicted_costs.h"

namespace deepinfer {

class GrammarPool;
class KvStore;

// What all requests together tell about drafts.
struct DraftingState {
  DraftCounts counts = kUnknownCounts;
  double mean_verified = 0;    // running mean over items that drafted
  int64_t num_drafted = 0;     // such items
  int64_t num_free_tries = 0;  // that took nothing from the allowance
  TryAllowance allowance;
  DraftYield yield;
  ExpectedStep next;  // of the next step, if all these requests decode and nothing else runs:
  int64_t num_requests = 0;
  bool keeps_context = true;
  int64_t drafted_in_a_row = 0;  // steps that ended
};

struct EngineState {
  EngineState(Model* m, const EngineOptions& o, const Clock* c, std::unique_ptr<KvMemory> kv,
              GrammarPool* g, KvStore* persistent);

  Model* model;
  EngineOptions options;
  const Clock* clock;
  std::unique_ptr<KvMemory> memory;
  GrammarPool* grammars;  // may be null
  KvStore* store;         // null: blocks are kept in memory only
  std::shared_ptr<PinReturns> pins;

  // All sequences that exist, ended ones until their memory is back; in order of arrival.
  std::map<int64_t, std::unique_ptr<Sequence>> sequences;
  std::vector<int64_t> compiling;  // those in kPending for their grammar, in order of arrival
  AdmissionQueue queue;            // those in kQueued
  PromptBacklog queued_prompts;    // of these
  int64_t queued_output_tokens = 0;
  std::vector<Sequence*> loading;  // those in kLoading, in order of arrival
  LoadTimeModel load_time;
  std::vector<Sequence*> active;  // those that hold a slot and did not end
  std::vector<Sequence*> parked;

  DeadlineQueue deadlines;
  PlannerLimits limits;
  PlannerMemory planner_memory;
  FlopModel flops;
  StepTimeModel step_time;
  double decode_step_us = 0;  // running mean of steps with decode rows
  const int32_t max_drafts;   // of one request and step; 0: drafting is off
  DraftingState drafting;
  DraftTimeModel draft_time;
  DraftTimeModel decode_time;  // of steps of decode rows alone, by their number

  ModelUse model_use;
  bool swept = true;               // since the last sequence came
  std::vector<MemoryCopy> copies;  // of the next job
  std::vector<Fork> forks;
  EngineStatistics statistics;

  CostModel cost() const { return {&flops, &step_time}; }
  Sequence* Find(int64_t id) const {
    const auto it = sequences.find(id);
    return it == sequences.end() ? nullptr : it->second.get();
  }
};

// Dimensions of a model for the cost model.
CostShape MakeCostShape(const ModelConfig& config);

// When its first token should come, for the order of waiting requests; kNoDeadlineUs: any time.
int64_t FirstTokenDueUs(const EngineState& state, const Sequence& s);
// Puts a sequence among those that wait for admission, and takes it out.
void Enqueue(EngineState& state, Sequence& s);
void Dequeue(EngineState& state, Sequence& s);
// Ends the wait of an admitted or forked sequence and books what it found in the cache.
void NoteStart(EngineState& state, Sequence& s);
// Sizes the device side of a sequence that is about to be admitted.
void PrepareDevice(EngineState& state, Sequence& s);
// Blocks for rows below `end`; false when the pool is out of blocks, and then nothing changed.
bool EnsureBlocks(EngineState& state, Sequence& s, int32_t end);
// Offers blocks that `computed` completed to the prefix index.
void PublishBlocks(EngineState& state, Sequence& s);
// Gives back slot and blocks. Precondition: no rows in flight.
void ReleaseMemory(EngineState& state, Sequence& s);

}  // namespace deepinfer
