// The rows of the next step: decode rows first, then prefill chunks within a predicted time
// (architecture.md §7).
// Thread rule: pure function; equal inputs give equal plans.
#pragma once

#include "sched/flop_model.h"
#include "sched/snapshot.h"
#include "sched/step_time_model.h"

namespace deepinfer {

// What planning knows about time.
struct CostModel {
  const FlopModel* flops = nullptr;
  const StepTimeModel* time = nullptr;

  void AddPrefill(int64_t start, int64_t end, int64_t decoder_from, StepRows* rows) const;
  // Rows whose layers below the decoder ran elsewhere.
  void AddDecoderRows(int64_t start, int64_t end, StepRows* rows) const;
  void AddDecode(int64_t position, int64_t num_rows, StepRows* rows) const;
};

StepPlan Plan(const PlannerSnapshot& snapshot, const PlannerLimits& limits, const CostModel& cost);

}  // namespace deepinfer
