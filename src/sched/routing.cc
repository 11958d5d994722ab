#include "sched/routing.h"

#include <tuple>

namespace deepinfer {

namespace {

// Context at which attention costs as much as the rest of a row: from the operation counts of
// sched/flop_model.h for the release's dimensions.
constexpr double kCrossoverTokens = 3.0e6;

double StepCost(const RouteCandidate& w, int64_t tokens) {
  return w.running + 1 + static_cast<double>(w.kv_tokens + tokens) / kCrossoverTokens;
}

template <typename Key>
std::optional<size_t> Least(std::span<const RouteCandidate> workers, Key key) {
  std::optional<size_t> best;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].usable) continue;
    if (!best || key(workers[i]) < key(workers[*best])) best = i;
  }
  return best;
}

}  // namespace

std::optional<size_t> ChoosePrefill(std::span<const RouteCandidate> workers) {
  return Least(workers, [](const RouteCandidate& w) {
    return std::tuple(w.queued_prompt_tokens, w.running);
  });
}

std::optional<size_t> ChooseDecode(std::span<const RouteCandidate> workers, int64_t tokens) {
  return Least(workers, [tokens](const RouteCandidate& w) {
    const bool full = w.free_tokens != 0 && w.free_tokens < tokens;
    return std::tuple(full, StepCost(w, tokens));
  });
}

}  // namespace deepinfer
