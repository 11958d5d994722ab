#include "cluster/queue_forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deepinfer {

namespace {

constexpr int64_t kLeastIntervalUs = 50'000;
// Old enough to smooth out single long prompts, young enough to follow a change of load.
constexpr double kHalfLifeS = 20;
constexpr double kLeastBusyS = 0.5;

}  // namespace

QueueSnapshot QueueSum::Add(std::span<const WorkerQueue> workers) {
  QueueSnapshot sum;
  std::unordered_map<uint64_t, QueueSnapshot> seen;
  for (const WorkerQueue& worker : workers) {
    const QueueSnapshot& now = worker.now;
    sum.waiting += now.waiting;
    sum.waiting_prompt_tokens += now.waiting_prompt_tokens;
    if (worker.incarnation == 0) continue;
    if (const auto it = last_.find(worker.incarnation); it != last_.end()) {
      started_ += std::max<int64_t>(0, now.started - it->second.started);
      prefill_rows_ += std::max<int64_t>(0, now.prefill_rows - it->second.prefill_rows);
    }
    seen[worker.incarnation] = now;
  }
  last_ = std::move(seen);
  sum.started = started_;
  sum.prefill_rows = prefill_rows_;
  return sum;
}

void QueueForecast::Observe(int64_t now_us, const QueueSnapshot& now) {
  if (last_us_ && now_us - *last_us_ < kLeastIntervalUs) return;
  if (last_us_ && last_.waiting > 0 && now.waiting > 0) {
    const double seconds = static_cast<double>(now_us - *last_us_) * 1e-6;
    const double keep = std::exp2(-seconds / kHalfLifeS);
    busy_s_ = busy_s_ * keep + seconds;
    started_ = started_ * keep + static_cast<double>(now.started - last_.started);
    prefill_rows_ =
        prefill_rows_ * keep + static_cast<double>(now.prefill_rows - last_.prefill_rows);
  }
  last_us_ = now_us;
  last_ = now;
}

std::optional<double> QueueForecast::WaitSeconds(const QueueSnapshot& now) const {
  if (now.waiting == 0) return 0.0;
  if (busy_s_ < kLeastBusyS) return std::nullopt;
  // One start more than were seen: a queue that has not moved yet is judged by its age.
  double seconds = static_cast<double>(now.waiting) * busy_s_ / (started_ + 1);
  if (prefill_rows_ > 0) {
    seconds =
        std::max(seconds, static_cast<double>(now.waiting_prompt_tokens) * busy_s_ / prefill_rows_);
  }
  return seconds;
}

}  // namespace deepinfer
