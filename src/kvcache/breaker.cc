#include "kvcache/breaker.h"

#include <algorithm>
#include <vector>

namespace deepinfer {

ReadPermit CircuitBreaker::Allow(int64_t now_us) {
  const std::lock_guard lock(mutex_);
  if (!open_) return ReadPermit::kGranted;
  if (probing_ || now_us < retry_us_) return ReadPermit::kRefused;
  probing_ = true;
  return ReadPermit::kProbe;
}

bool CircuitBreaker::IsOff(int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  return open_ && (probing_ || now_us < retry_us_);
}

int64_t CircuitBreaker::SlowUs() const {
  return std::max<int64_t>(kMinSlowUs, static_cast<int64_t>(median_us_) * kSlowFactor);
}

void CircuitBreaker::Record(ReadPermit permit, bool ok, int64_t latency_us, int64_t now_us) {
  const std::lock_guard lock(mutex_);
  if (!open_) return Count(ok, latency_us, now_us);
  // Others were sent before it opened.
  if (permit == ReadPermit::kProbe && probing_) EndProbe(ok && latency_us < SlowUs(), now_us);
}

void CircuitBreaker::RecordLate(ReadPermit permit, int64_t age_us, int64_t now_us) {
  const std::lock_guard lock(mutex_);
  if (age_us < SlowUs()) return;
  if (!open_) return Count(false, age_us, now_us);
  if (permit == ReadPermit::kProbe && probing_) EndProbe(false, now_us);
}

void CircuitBreaker::EndProbe(bool good, int64_t now_us) {
  probing_ = false;
  if (good) {
    open_ = false;
    num_samples_ = 0;
    pause_us_ = kFirstPauseUs;
  } else {
    pause_us_ = std::min(2 * pause_us_, kLongestPauseUs);
    retry_us_ = now_us + pause_us_;
  }
}

void CircuitBreaker::Count(bool ok, int64_t latency_us, int64_t now_us) {
  samples_[static_cast<size_t>(num_samples_++ % kWindow)] = {latency_us, ok};
  const auto seen = static_cast<size_t>(std::min<int64_t>(num_samples_, kWindow));
  const auto errors = std::count_if(samples_.begin(), samples_.begin() + static_cast<int64_t>(seen),
                                    [](const Sample& sample) { return !sample.ok; });
  if (errors > kMaxErrors) return Trip("errors", now_us);
  if (num_samples_ % kWindow != 0) return;
  if (TooSlow()) return Trip("latency", now_us);
  const auto median = static_cast<double>(Quantile(0.5));
  const double weight = median_us_ == 0
                            ? 1.0
                            : std::clamp(static_cast<double>(now_us - median_updated_us_) /
                                             static_cast<double>(kMedianRangeUs),
                                         0.01, 1.0);
  median_us_ += weight * (median - median_us_);
  median_updated_us_ = now_us;
}

std::string CircuitBreaker::StateText(int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  if (!open_) return "on";
  return (probing_ || now_us >= retry_us_ ? "degraded: " : "off: ") + reason_;
}

void CircuitBreaker::Trip(const char* reason, int64_t now_us) {
  open_ = true;
  probing_ = false;
  reason_ = reason;
  retry_us_ = now_us + pause_us_;
}

bool CircuitBreaker::TooSlow() const {
  const int64_t slowest = Quantile(0.99);
  return median_us_ > 0 && slowest >= kMinSlowUs &&
         static_cast<double>(slowest) > kSlowFactor * median_us_;
}

int64_t CircuitBreaker::Quantile(double share) const {
  const int64_t seen = std::min<int64_t>(num_samples_, kWindow);
  if (seen == 0) return 0;
  std::vector<int64_t> sorted;
  for (int64_t i = 0; i < seen; ++i) sorted.push_back(samples_[static_cast<size_t>(i)].latency_us);
  std::ranges::sort(sorted);
  return sorted[static_cast<size_t>(share * static_cast<double>(seen - 1))];
}

}  // namespace deepinfer
