#include "sched/verify_length.h"

#include <algorithm>

namespace deepinfer {

namespace {

// Below it a draft cannot pay for its row; only the search of stage 1 leaves it out.
constexpr double kNegligibleSurvival = 1e-6;

struct Candidate {
  double survival;
  size_t draft;
  int64_t request_id;
  size_t request;  // index
};

std::vector<Candidate> InOrder(std::span<const DraftSurvivals> requests) {
  std::vector<Candidate> order;
  for (size_t r = 0; r < requests.size(); ++r) {
    const auto& survivals = requests[r].survivals;
    for (size_t j = 0; j < survivals.size(); ++j) {
      order.push_back({survivals[j], j, requests[r].request_id, r});
    }
  }
  std::sort(order.begin(), order.end(), [](const Candidate& a, const Candidate& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    if (a.draft != b.draft) return a.draft < b.draft;
    return a.request_id < b.request_id;
  });
  return order;
}

}  // namespace

std::vector<double> SurvivalsOf(std::span<const double> acceptance) {
  std::vector<double> survivals;
  double product = 1.0;
  for (const double a : acceptance) survivals.push_back(product *= a);
  return survivals;
}

DraftBudget PlanDraftBudget(std::span<const DraftSurvivals> earlier, int64_t num_emitting,
                            int64_t num_other_rows, const StepRate& rate) {
  const int64_t base_rows = num_other_rows + static_cast<int64_t>(earlier.size());
  double gain = static_cast<double>(num_emitting);
  DraftBudget best{0, gain * rate(base_rows)};
  int64_t num_drafts = 0;
  for (const Candidate& candidate : InOrder(earlier)) {
    if (candidate.survival < kNegligibleSurvival) break;
    gain += candidate.survival;
    ++num_drafts;
    const double value = gain * rate(base_rows + num_drafts);
    if (value > best.tokens_per_second) best = {num_drafts, value};
  }
  return best;
}

std::vector<int32_t> AllocateDrafts(std::span<const DraftSurvivals> current, int64_t num_drafts) {
  std::vector<int32_t> lengths(current.size(), 0);
  for (const Candidate& candidate : InOrder(current)) {
    if (num_drafts-- <= 0) break;
    ++lengths[candidate.request];
  }
  return lengths;
}

VerifyLengths PlanSynchronousLengths(std::span<const DraftSurvivals> current, int64_t num_emitting,
                                     int64_t most_drafts, const StepRate& rate) {
  const auto num_requests = static_cast<int64_t>(current.size());
  auto gain = static_cast<double>(num_emitting);
  VerifyLengths plan{std::vector<int32_t>(current.size(), 0), gain * rate(num_requests)};
  int64_t num_drafts = 0;
  for (const Candidate& candidate : InOrder(current)) {
    if (num_drafts >= most_drafts) break;
    gain += candidate.survival;
    const double value = gain * rate(num_requests + ++num_drafts);
    if (!(value > plan.tokens_per_second)) break;
    plan.tokens_per_second = value;
    ++plan.lengths[candidate.request];
  }
  return plan;
}

Admission AdmitDrafts(std::span<const DraftSurvivals> current, const VerifyBudget& budget) {
  if (budget.row_us <= 0.0) return {AllocateDrafts(current, budget.most_drafts), 0.0};
  const auto num_requests = static_cast<int64_t>(current.size());
  const StepRate rate = [&](int64_t num_rows) {
    return 1.0 / (budget.step_us + static_cast<double>(num_rows - num_requests) * budget.row_us);
  };
  VerifyLengths plan =
      PlanSynchronousLengths(current, budget.num_emitting, budget.most_drafts, rate);
  // Rows of one price: one more draft raises the rate if it survives better than this.
  return {std::move(plan.lengths), plan.tokens_per_second * budget.row_us};
}

}  // namespace deepinfer
