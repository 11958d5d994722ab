#include "sched/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sched/admission.h"
#include "sched/victims.h"

namespace deepinfer {

void CostModel::AddPrefill(int64_t start, int64_t end, int64_t decoder_from, StepRows* rows) const {
  rows->prefill_rows += end - start;
  rows->tail_rows += std::max<int64_t>(0, end - std::max(start, decoder_from));
  rows->index_pairs += flops->IndexPairs(start, end, decoder_from);
  rows->max_context = std::max(rows->max_context, end);
  rows->flops += flops->PrefillRows(start, end, decoder_from);
  rows->attention_flops += flops->AttentionOfPrefillRows(start, end, decoder_from);
}

void CostModel::AddDecoderRows(int64_t start, int64_t end, StepRows* rows) const {
  rows->tail_rows += end - start;
  rows->index_pairs += flops->IndexPairs(start, end, start) - flops->IndexPairs(start, end, end);
  rows->max_context = std::max(rows->max_context, end);
  rows->flops += flops->PrefillRows(start, end, start) - flops->PrefillRows(start, end, end);
  rows->attention_flops += flops->AttentionOfPrefillRows(start, end, start) -
                           flops->AttentionOfPrefillRows(start, end, end);
}

void CostModel::AddDecode(int64_t position, int64_t num_rows, StepRows* rows) const {
  rows->decode_rows += num_rows;
  const auto num = static_cast<double>(num_rows);
  rows->decode_context += static_cast<double>(position) * num;
  rows->max_context = std::max(rows->max_context, position + num_rows);
  rows->flops += flops->DecodeRow(position) * num;
  rows->attention_flops += flops->AttentionOfDecodeRow(position) * num;
}

namespace {

class StepPlanner {
 public:
  StepPlanner(const PlannerSnapshot& snapshot, const PlannerLimits& limits, const CostModel& cost)
      : in_(snapshot), limits_(limits), cost_(cost) {
    plan_.memory = snapshot.memory;
    available_ = snapshot.pool.available();
    free_slots_ = snapshot.pool.free_slots;
    num_sequences_ = static_cast<int32_t>(snapshot.decode.size());
    for (const PrefillInput& c : snapshot.prefill) num_sequences_ += c.admitted;
  }

  StepPlan Run() {
    ParkForDecode();
    PlanDecode();
    PlanPrefill();
    BreakStall();
    UpdateMemory();
    plan_.predicted_us = cost_.time->Predict(plan_.rows);
    return std::move(plan_);
  }

 private:
  enum class Outcome { kPlanned, kNoMemory, kNoBudget };

  static int32_t Missing(const DecodeInput& d, int32_t num_rows) {
    return std::max(0, PlanBlocks(int64_t{d.next} + num_rows) - d.holding.held_blocks);
  }
  bool IsParked(int64_t id) const {
    return std::find(plan_.park.begin(), plan_.park.end(), id) != plan_.park.end();
  }
  bool QuantumDue() const {
    return !in_.prefill.empty() && in_.memory.steps_since_prefill + 1 >= limits_.prefill_every;
  }
  bool BatchFloorDue() const { return in_.memory.batch_credit_rows >= limits_.min_prefill_rows; }

  // Everything that holds blocks and was not chosen yet, less one id.
  std::vector<const Holding*> Holders(int64_t except_id) const {
    std::vector<const Holding*> holders;
    const auto add = [&](const Holding& h) {
      if (h.id != except_id && !IsParked(h.id)) holders.push_back(&h);
    };
    for (const DecodeInput& d : in_.decode) add(d.holding);
    for (const PrefillInput& c : in_.prefill) {
      if (c.admitted) add(c.holding);
    }
    return holders;
  }

  // Chooses victims until the others' next rows fit. Their blocks are free for the next plan.
  void ParkForDecode() {
    int64_t deficit = -int64_t{available_} - in_.pool.returning_blocks;
    for (const DecodeInput& d : in_.decode) deficit += d.can_run ? Missing(d, 1) : 0;
    while (deficit > 0) {
      const std::vector<const Holding*> holders = Holders(0);
      if (holders.size() < 2) return;
      const Holding* victim = ChooseVictim(holders, in_.now_us);
      if (victim == nullptr) return;
      plan_.park.push_back(victim->id);
      deficit -= victim->held_blocks;
      for (const DecodeInput& d : in_.decode) {
        if (d.holding.id == victim->id && d.can_run) deficit -= Missing(d, 1);
      }
    }
  }

  // Rotates where the rows of a step do not suffice for all.
  void PlanDecode() {
    std::vector<const DecodeInput*> order;
    for (const DecodeInput& d : in_.decode) {
      if (d.can_run && !IsParked(d.holding.id)) order.push_back(&d);
    }
    std::sort(order.begin(), order.end(), [](const DecodeInput* a, const DecodeInput* b) {
      return a->holding.id < b->holding.id;
    });
    const auto first = std::find_if(order.begin(), order.end(), [&](const DecodeInput* d) {
      return d->holding.id > in_.memory.last_decoded_id;
    });
    std::rotate(order.begin(), first, order.end());
    int32_t rows_left = limits_.max_rows;
    if (QuantumDue()) {
      rows_left -= std::min(limits_.min_prefill_rows, std::max(1, limits_.max_rows / 2));
    }
    // A token of every sequence comes before drafts, and prompts get half of what is left.
    int32_t draft_rows = std::max(0, rows_left - static_cast<int32_t>(order.size()));
    if (!in_.prefill.empty()) draft_rows /= 2;
    for (const DecodeInput* d : order) {
      if (rows_left <= 0) break;
      int32_t num_rows = 1 + std::min(d->num_rows - 1, draft_rows);
      if (Missing(*d, num_rows) > available_) num_rows = 1;
      if (Missing(*d, num_rows) > available_) continue;
      available_ -= Missing(*d, num_rows);
      rows_left -= num_rows;
      plan_.decode.push_back({d->holding.id, num_rows});
      plan_.memory.last_decoded_id = d->holding.id;
      draft_rows -= num_rows - 1;
      decode_rows_ += num_rows;
      const int32_t timed_rows = d->timed_rows > 0 ? std::min(d->timed_rows, num_rows) : num_rows;
      cost_.AddDecode(d->next, timed_rows, &plan_.rows);
    }
    std::sort(plan_.decode.begin(), plan_.decode.end(),
              [](const DecodeRows& a, const DecodeRows& b) { return a.id < b.id; });
  }

  void PlanPrefill() {
    rows_left_ = limits_.max_rows - decode_rows_;
    for (const PrefillInput& c : in_.prefill) {
      if (c.next < c.end) most_urgent_ = std::min(most_urgent_, c.holding.request_class);
    }
    time_limit_us_ = std::numeric_limits<double>::infinity();
    if (plan_.decode.empty() && most_urgent_ == RequestClass::kBatch) {
      // Whoever comes next has to wait for this step.
      time_limit_us_ = static_cast<double>(limits_.tpot_target_us);
    }
    if (!plan_.decode.empty()) {
      const double decode_us = cost_.time->Predict(plan_.rows);
      const double allowed = std::max(decode_us, static_cast<double>(limits_.tpot_target_us));
      time_limit_us_ =
          decode_us + std::min(allowed - decode_us, limits_.prefill_share_max * allowed);
    }
    int32_t skips = 0;
    bool out_of_budget = false;
    for (const PrefillInput* c : CandidateOrder(in_, BatchFloorDue(), HasTimeForOneOnly())) {
      if (IsParked(c->holding.id)) continue;
      // What comes back without a row to compute takes no time.
      if (out_of_budget && c->next < c->end) continue;
      const Outcome outcome = TryCandidate(*c);
      if (outcome == Outcome::kNoBudget) {
        out_of_budget = true;
        continue;
      }
      if (outcome == Outcome::kPlanned) continue;
      if (blocked_ == nullptr && c->admitted) blocked_ = c;
      plan_.skipped.push_back(c->holding.id);
      if (!c->admitted && barrier_ == nullptr && IsBarrier(*c, in_.now_us)) {
        barrier_ = c;
        const int32_t need = std::max(1, PlanBlocks(c->end) - c->hit_blocks + c->hit_idle);
        barrier_wait_us_ = WaitForBlocksUs(in_, need);
      }
      if (++skips >= limits_.max_skips) break;
    }
  }

  // Whether decode rows leave no time for a quantum: it runs all the same now and then, of one
  // candidate.
  bool HasTimeForOneOnly() const {
    if (plan_.decode.empty()) return false;
    return std::all_of(in_.prefill.begin(), in_.prefill.end(), [&](const PrefillInput& c) {
      if (c.next >= c.end) return true;
      const int64_t quantum_end = std::min<int64_t>(c.end, c.next + limits_.min_prefill_rows);
      return !FitsInTime(c, quantum_end);
    });
  }

  Outcome TryCandidate(const PrefillInput& c) {
    int32_t available = available_;
    if (!c.admitted) {
      if (free_slots_ == 0 || num_sequences_ >= limits_.max_sequences) return Outcome::kNoMemory;
      // Behind a barrier only those pass that end before it could start.
      if (barrier_ != nullptr && c.holding.predicted_remaining_us > barrier_wait_us_) {
        return Outcome::kNoMemory;
      }
      available -= c.hit_idle + kBlocksPerDecode * static_cast<int32_t>(in_.decode.size());
    }
    const int32_t held = c.admitted ? c.holding.held_blocks : c.hit_blocks;
    const int64_t block_limit = int64_t{kPlanBlockTokens} * (held + std::max(0, available));
    if (block_limit <= c.next && c.next < c.end) return Outcome::kNoMemory;
    if (available < 0 || block_limit < c.next) return Outcome::kNoMemory;
    // What comes back without a row to compute needs the block of its next token as well: restored
    // up to its last block it would be parked again, before those that could go on meanwhile.
    if (!c.admitted && c.next == c.end && block_limit <= c.end) return Outcome::kNoMemory;
    const int32_t end = ChunkEnd(c, block_limit);
    if (end <= c.next && c.next < c.end) return Outcome::kNoBudget;
    int32_t taken = std::max(0, PlanBlocks(end) - held);
    if (!c.admitted) {
      taken += c.hit_idle;
      if (!ReserveHolds(in_, c, in_.pool.available() - available_ + taken)) {
        return Outcome::kNoMemory;
      }
      --free_slots_;
      ++num_sequences_;
    }
    available_ -= taken;
    rows_left_ -= end - c.next;
    plan_.prefill.push_back({c.holding.id, c.next, end - c.next});
    if (c.holding.request_class == RequestClass::kBatch) {
      plan_.memory.batch_credit_rows -= end - c.next;
    }
    if (end > c.next) AddRows(c, end, &plan_.rows);
    return Outcome::kPlanned;
  }

  // Rows of c up to `end`.
  void AddRows(const PrefillInput& c, int64_t end, StepRows* rows) const {
    if (c.only_decoder) {
      cost_.AddDecoderRows(c.next, end, rows);
    } else {
      cost_.AddPrefill(c.next, end, c.decoder_from, rows);
    }
  }

  // Where the next chunk of c ends under the limits of rows, blocks, time and cuts.
  int32_t ChunkEnd(const PrefillInput& c, int64_t block_limit) const {
    int64_t limit = std::min({int64_t{c.end}, block_limit, int64_t{c.next} + rows_left_});
    // What began before somebody more urgent came goes on, but leaves room in the step.
    if (c.holding.request_class > most_urgent_) {
      limit = std::min(limit, int64_t{c.next} + limits_.min_prefill_rows);
    }
    if (BatchFloorDue() && c.holding.request_class == RequestClass::kBatch && !c.admitted) {
      limit = std::min(limit, c.next + static_cast<int64_t>(in_.memory.batch_credit_rows));
    }
    const auto cut = std::upper_bound(c.cuts.begin(), c.cuts.end(), c.next);
    const bool has_cut = cut != c.cuts.end();
    if (has_cut) limit = std::min<int64_t>(limit, *cut);
    int64_t in_time = LastEndInTime(c, limit);
    if ((QuantumDue() || plan_.decode.empty()) && plan_.rows.prefill_rows == 0) {
      in_time = std::max(in_time, std::min<int64_t>(limit, c.next + limits_.min_prefill_rows));
    }
    limit = std::min(limit, in_time);
    const bool free_end = limit == c.end || (has_cut && limit == *cut);
    return free_end ? static_cast<int32_t>(limit) : AlignedEnd(c.next, limit);
  }

  // Other ends lie on block edges where one is within reach, else on even positions, so that no
  // pair of the compressor stays open between steps.
  int32_t AlignedEnd(int32_t start, int64_t limit) const {
    const int64_t edge = limit / kPlanBlockTokens * kPlanBlockTokens;
    if (edge > start) return static_cast<int32_t>(edge);
    const int64_t even = limit / 2 * 2;
    if (even > start || limits_.max_rows > 1)
      return static_cast<int32_t>(std::max<int64_t>(even, start));
    return static_cast<int32_t>(limit);
  }

  bool FitsInTime(const PrefillInput& c, int64_t end) const {
    StepRows rows = plan_.rows;
    AddRows(c, end, &rows);
    return cost_.time->Predict(rows) <= time_limit_us_;
  }

  int64_t LastEndInTime(const PrefillInput& c, int64_t limit) const {
    if (limit <= c.next || std::isinf(time_limit_us_) || FitsInTime(c, limit)) return limit;
    int64_t good = c.next, bad = limit;
    while (bad - good > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (FitsInTime(c, middle) ? good : bad) = middle;
    }
    return good;
  }

  // When nothing can run for want of blocks, the first in order goes on at another's expense.
  void BreakStall() {
    if (!plan_.empty() || !plan_.park.empty() || blocked_ == nullptr) return;
    if (in_.pool.returning_blocks > 0) return;
    const Holding* victim = ChooseVictim(Holders(blocked_->holding.id), in_.now_us);
    if (victim != nullptr) plan_.park.push_back(victim->id);
  }

  void UpdateMemory() {
    const bool ran = plan_.rows.prefill_rows > 0;
    plan_.memory.steps_since_prefill =
        ran || in_.prefill.empty() ? 0 : in_.memory.steps_since_prefill + 1;
    const bool batch_waits = std::any_of(in_.prefill.begin(), in_.prefill.end(), [](const auto& c) {
      return c.holding.request_class == RequestClass::kBatch;
    });
    double& credit = plan_.memory.batch_credit_rows;
    credit += kBatchFloor * static_cast<double>(plan_.rows.prefill_rows);
    // Unused credit does not pile up into a burst.
    credit = batch_waits ? std::clamp<double>(credit, 0.0, 8.0 * limits_.min_prefill_rows) : 0.0;
  }

  const PlannerSnapshot& in_;
  const PlannerLimits& limits_;
  const CostModel& cost_;
  StepPlan plan_;
  int32_t available_ = 0;
  int32_t free_slots_ = 0;
  int32_t num_sequences_ = 0;
  int32_t decode_rows_ = 0;  // with drafts
  int32_t rows_left_ = 0;
  double time_limit_us_ = 0;
  RequestClass most_urgent_ = RequestClass::kBatch;  // of those that have rows to run
  const PrefillInput* blocked_ = nullptr;  // first admitted candidate that found no memory
  const PrefillInput* barrier_ = nullptr;
  int64_t barrier_wait_us_ = 0;
};

}  // namespace

StepPlan Plan(const PlannerSnapshot& snapshot, const PlannerLimits& limits, const CostModel& cost) {
  return StepPlanner(snapshot, limits, cost).Run();
}

}  // namespace deepinfer
