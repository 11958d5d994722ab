#include "sched/routing.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace deepinfer {

namespace {

// Context at which attention costs as much as the rest of a row: from the operation counts of
// sched/flop_model.h for the release's dimensions.
constexpr double kCrossoverTokens = 3.0e6;
// Predictions further off than this say less than a count of tokens.
constexpr double kMostError = 0.2;
// Differences below the error of a good prediction mean nothing.
constexpr double kTie = 0.02;
// Prompts that a worker holds beyond the running one: two intervals of reports and a step, so that
// it does not run dry before the gateway hears of it.
constexpr double kCreditUs = 250'000;
// The same while their cost is unknown: one large step.
constexpr double kCreditTokens = 2048;
// Of that for the batch class: what it fills, a more urgent request has to wait out.
constexpr double kBatchShare = 0.2;
// Requests beyond those it can run: they take a place that becomes free in the same step.
constexpr int32_t kLeastSpare = 2;
constexpr int32_t kSpareShare = 8;

double StepCost(const RouteCandidate& w, int64_t tokens, bool by_cost) {
  const double rows = w.running + 1;
  const auto context = static_cast<double>(w.kv_tokens + tokens);
  if (!by_cost) return rows + context / kCrossoverTokens;
  return w.costs.step_us + w.costs.step_us_per_row * rows + w.costs.step_us_per_token * context;
}

bool CostsAreKnown(const PredictedCosts& c) {
  return c.error <= kMostError && c.prompt_us_per_token > 0 && c.step_us_per_row > 0;
}

bool IsIdle(const RouteCandidate& w) { return w.running == 0 && w.queued_prompt_tokens == 0; }

}  // namespace

bool CostsAreKnown(std::span<const RouteCandidate> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const RouteCandidate& w) { return !w.usable || CostsAreKnown(w.costs); });
}

bool HasCredit(const RouteCandidate& w, RequestClass request_class) {
  if (IsIdle(w) || w.max_running == 0) return true;
  const int32_t spare = std::max(kLeastSpare, w.max_running / kSpareShare);
  if (w.running >= w.max_running + spare) return false;
  const double share = request_class == RequestClass::kBatch ? kBatchShare : 1;
  return CostsAreKnown(w.costs)
             ? w.costs.queued_us < share * kCreditUs
             : static_cast<double>(w.queued_prompt_tokens) < share * kCreditTokens;
}

std::optional<double> WorkUs(const RouteCandidate& w, const PromptWork& prompt,
                             int64_t output_tokens) {
  if (!CostsAreKnown(w.costs)) return std::nullopt;
  const auto output = static_cast<double>(output_tokens);
  const double row_us =
      w.costs.step_us / (w.running + 1) + w.costs.step_us_per_row +
      w.costs.step_us_per_token * (static_cast<double>(prompt.tokens) + output / 2);
  return w.costs.PromptUs(prompt) + output * row_us;
}

double PromptDoneUs(const RouteCandidate& worker, const PromptWork& prompt) {
  return worker.costs.queued_us + worker.costs.PromptUs(prompt);
}

double DecodeStepUs(const RouteCandidate& worker, int64_t tokens) {
  return StepCost(worker, tokens, /*by_cost=*/true);
}

std::optional<size_t> ChoosePrefill(std::span<const RouteCandidate> workers,
                                    const PromptWork& prompt, uint64_t random) {
  const bool by_cost = CostsAreKnown(workers);
  const auto done = [&](const RouteCandidate& w) {
    return by_cost ? PromptDoneUs(w, prompt)
                   : static_cast<double>(w.queued_prompt_tokens + prompt.tokens);
  };
  using Rank = std::tuple<bool, double, int32_t, size_t>;
  std::vector<Rank> ranks;
  for (size_t i = 0; i < workers.size(); ++i) {
    const RouteCandidate& w = workers[i];
    if (w.usable) ranks.emplace_back(!IsIdle(w), done(w), w.running, i);
  }
  if (ranks.empty()) return std::nullopt;
  const size_t num_best = std::min<size_t>(2, ranks.size());
  std::partial_sort(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(num_best),
                    ranks.end());
  const auto& [busy, first, running, index] = ranks[0];
  if (num_best == 1) return index;
  const auto& [other_busy, second, other_running, other_index] = ranks[1];
  const bool tie =
      busy == other_busy && other_running <= running && second - first <= kTie * second;
  return tie && random % 2 == 1 ? other_index : index;
}

std::optional<size_t> ChooseDecode(std::span<const RouteCandidate> workers, int64_t tokens) {
  const bool by_cost = CostsAreKnown(workers);
  const auto key = [&](const RouteCandidate& w) {
    const bool full = w.free_tokens != 0 && w.free_tokens < tokens;
    return std::tuple(full, StepCost(w, tokens, by_cost));
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].usable) continue;
    if (!best || key(workers[i]) < key(workers[*best])) best = i;
  }
  return best;
}

}  // namespace deepinfer
