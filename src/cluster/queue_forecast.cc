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
  ++round_;
  size_t num_seen = 0;
  for (const WorkerQueue& worker : workers) {
    const QueueSnapshot& now = worker.now;
    sum.waiting += now.waiting;
    sum.waiting_prompt_tokens += now.waiting_prompt_tokens;
    if (worker.incarnation == 0) continue;
    const auto [it, is_new] = last_.try_emplace(worker.incarnation);
    Last& last = it->second;
    if (!is_new) {
      started_ += std::max<int64_t>(0, now.started - last.queue.started);
      prefill_rows_ += std::max<int64_t>(0, now.prefill_rows - last.queue.prefill_rows);
    }
    num_seen += last.round != round_ ? 1 : 0;
    last = {now, round_};
  }
  if (num_seen != last_.size()) {
    std::erase_if(last_, [&](const auto& entry) { return entry.second.round != round_; });
  }
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
