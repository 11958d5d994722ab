#include "sched/admission.h"

#include <algorithm>
#include <tuple>

namespace deepinfer {

std::vector<const PrefillInput*> CandidateOrder(const PlannerSnapshot& snapshot,
                                                bool batch_floor_due, bool only_one) {
  std::vector<const PrefillInput*> order;
  order.reserve(snapshot.prefill.size());
  for (const PrefillInput& c : snapshot.prefill) order.push_back(&c);
  const int64_t now = snapshot.now_us;
  const auto key = [&](const PrefillInput& c) {
    const RequestClass rank = c.holding.request_class;
    const bool aged = now - c.arrival_us > MaxWaitUs(rank);
    const int64_t slack = c.deadline_us == kNoDeadlineUs
                              ? kNoDeadlineUs
                              : c.deadline_us - now - c.predicted_prefill_us;
    // Among aged candidates arrival alone decides.
    return std::make_tuple(!c.admitted && !only_one, !aged,
                           aged ? RequestClass::kInteractive : rank, !c.admitted && !aged,
                           aged ? 0 : slack, c.arrival_us, c.holding.id);
  };
  std::sort(order.begin(), order.end(),
            [&](const PrefillInput* a, const PrefillInput* b) { return key(*a) < key(*b); });
  if (batch_floor_due) {
    const auto first_batch = std::find_if(order.begin(), order.end(), [](const PrefillInput* c) {
      return c->holding.request_class == RequestClass::kBatch;
    });
    if (first_batch != order.end()) std::rotate(order.begin(), first_batch, first_batch + 1);
  }
  return order;
}

bool ReserveHolds(const PlannerSnapshot& snapshot, const PrefillInput& candidate, int32_t taken) {
  const int32_t available = snapshot.pool.available() - taken;
  int64_t retractable = 0;
  int64_t worst = candidate.holding.total_blocks - candidate.hit_blocks - taken;
  int64_t worst_held = 0;
  const auto consider = [&](const Holding& h) {
    if (h.can_park) retractable += h.held_blocks;
    const int64_t remaining = h.total_blocks - h.held_blocks;
    if (remaining > worst) {
      worst = remaining;
      worst_held = h.can_park ? h.held_blocks : 0;
    }
  };
  for (const DecodeInput& d : snapshot.decode) consider(d.holding);
  for (const PrefillInput& c : snapshot.prefill) {
    if (c.admitted) consider(c.holding);
  }
  return available + retractable - worst_held >= worst;
}

int64_t WaitForBlocksUs(const PlannerSnapshot& snapshot, int32_t num_blocks) {
  std::vector<std::pair<int64_t, int32_t>> ends;
  for (const DecodeInput& d : snapshot.decode) {
    ends.emplace_back(d.holding.predicted_remaining_us, d.holding.held_blocks);
  }
  for (const PrefillInput& c : snapshot.prefill) {
    if (c.admitted) ends.emplace_back(c.holding.predicted_remaining_us, c.holding.held_blocks);
  }
  std::sort(ends.begin(), ends.end());
  int64_t available = snapshot.pool.available();
  if (available >= num_blocks) return 0;
  for (const auto& [remaining_us, blocks] : ends) {
    available += blocks;
    if (available >= num_blocks) return remaining_us;
  }
  return kNoDeadlineUs;
}

bool IsBarrier(const PrefillInput& candidate, int64_t now_us) {
  return candidate.skipped_steps > kBarrierSteps ||
         (candidate.skipped_since_us != 0 && now_us - candidate.skipped_since_us > kBarrierUs);
}

}  // namespace deepinfer
