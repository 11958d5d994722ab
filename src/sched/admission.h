// Who may enter next: order of candidates, block needs, reserve and barrier (architecture.md §7).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/snapshot.h"

namespace deepinfer {

// Blocks that hold num_rows rows.
constexpr int32_t PlanBlocks(int64_t num_rows) {
  return static_cast<int32_t>((num_rows + kPlanBlockTokens - 1) / kPlanBlockTokens);
}

// Candidates in the order in which they are tried: the first batch request when its floor is due,
// then chunks that go on, requests that waited too long, then class, slack, arrival. Where there is
// time for one of them only, chunks that go on come first in their class: else a long prompt would
// keep all others waiting.
std::vector<const PrefillInput*> CandidateOrder(const PlannerSnapshot& snapshot,
                                                bool batch_floor_due, bool only_one);

// True when, with `taken` more blocks handed out, the neediest sequence (the candidate included)
// could still run to its end, if need be with all others parked: admission cannot deadlock.
bool ReserveHolds(const PlannerSnapshot& snapshot, const PrefillInput& candidate, int32_t taken);

// Time until sequences that end give back enough blocks; kNoDeadlineUs when they never do.
int64_t WaitForBlocksUs(const PlannerSnapshot& snapshot, int32_t num_blocks);

bool IsBarrier(const PrefillInput& candidate, int64_t now_us);

}  // namespace deepinfer
