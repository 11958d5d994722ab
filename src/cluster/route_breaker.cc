#include "cluster/route_breaker.h"

#include <algorithm>

namespace deepinfer {

bool RouteBreaker::IsOver(const State& state, int64_t now_us) const {
  return now_us - std::max(state.failures_us.back(), state.barred_until_us) > options_.window_us;
}

bool RouteBreaker::Allows(const std::string& name, int64_t now_us) const {
  const auto it = states_.find(name);
  return it == states_.end() || now_us >= it->second.barred_until_us;
}

void RouteBreaker::NoteTry(const std::string& name, int64_t now_us) {
  const auto it = states_.find(name);
  if (it == states_.end()) return;
  State& state = it->second;
  if (IsOver(state, now_us)) {
    states_.erase(it);
  } else if (state.openings > 0) {
    state.barred_until_us = std::max(state.barred_until_us, now_us + options_.try_us);
    state.trying = true;
  }
}

void RouteBreaker::NoteFailure(const std::string& name, int64_t now_us) {
  // States of workers that left do not pile up.
  std::erase_if(states_, [&](const auto& entry) { return IsOver(entry.second, now_us); });
  State& state = states_[name];
  std::erase_if(state.failures_us, [&](int64_t t) { return now_us - t > options_.window_us; });
  state.failures_us.push_back(now_us);
  // Those that were under way when it opened say nothing new.
  if (now_us < state.barred_until_us && !state.trying) return;
  // Half open, one failure is enough.
  const auto most = static_cast<size_t>(options_.failures_to_open);
  if (state.openings == 0 && state.failures_us.size() < most) return;
  int64_t open_us = options_.open_us;
  for (int32_t i = 0; i < state.openings && open_us < options_.most_open_us; ++i) open_us *= 2;
  ++state.openings;
  state.trying = false;
  ++num_openings_;
  state.barred_until_us = now_us + std::min(open_us, options_.most_open_us);
}

size_t RouteBreaker::num_open(int64_t now_us) const {
  return static_cast<size_t>(std::count_if(states_.begin(), states_.end(), [&](const auto& entry) {
    return now_us < entry.second.barred_until_us;
  }));
}

}  // namespace deepinfer
