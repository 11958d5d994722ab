#include "cluster/busy_shares.h"

#include <algorithm>
#include <utility>

namespace deepinfer {

namespace {

// Long enough that single long prompts do not count, short enough to see a change of load.
constexpr int64_t kWindowUs = 60'000'000;
// Statistics of workers elsewhere come once a second.
constexpr int64_t kLeastIntervalUs = 1'000'000;

}  // namespace

bool BusyShares::IsDue(int64_t now_us) const {
  return looks_.empty() || now_us - looks_.back().at_us >= kLeastIntervalUs;
}

void BusyShares::Observe(int64_t now_us, std::span<const WorkerTime> workers) {
  if (!IsDue(now_us)) return;
  Look look{now_us, {}};
  for (const WorkerTime& w : workers) {
    if (w.incarnation != 0) look.workers[w.incarnation] = w;
  }
  looks_.push_back(std::move(look));
  while (looks_.size() > 1 && now_us - looks_[1].at_us >= kWindowUs) looks_.pop_front();
}

BusyShares::ByRole BusyShares::busiest() const {
  ByRole most{}, sum{}, num{};
  if (looks_.empty()) return most;
  for (const auto& entry : looks_.back().workers) {
    const WorkerTime& now = entry.second;
    const auto first = std::find_if(looks_.begin(), looks_.end(), [&](const Look& look) {
      return look.workers.contains(now.incarnation);
    });
    const auto busy_us =
        static_cast<double>(now.step_us - first->workers.at(now.incarnation).step_us);
    const auto role = static_cast<size_t>(now.role);
    most[role] = std::max(most[role], busy_us);
    sum[role] += busy_us;
    num[role] += 1;
  }
  for (size_t role = 0; role < kNumWorkerRoles; ++role) {
    most[role] = sum[role] > 0 ? most[role] * num[role] / sum[role] : 0;
  }
  return most;
}

}  // namespace deepinfer
