#include "server/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {

namespace {

constexpr double kSecondsPerMinute = 60;

}  // namespace

void RateLimit::Set(int64_t per_minute) {
  per_minute_ = per_minute;
  level_ = static_cast<double>(per_minute);
}

void RateLimit::Fill(TimePoint now) {
  const auto full = static_cast<double>(per_minute_);
  // Requests of several threads may be a little out of order.
  const double elapsed_s = std::max(0.0, std::chrono::duration<double>(now - filled_).count());
  level_ = std::min(full, level_ + elapsed_s * full / kSecondsPerMinute);
  filled_ = std::max(filled_, now);
}

RateLimit::Answer RateLimit::Take(int64_t amount, TimePoint now) {
  Answer answer;
  answer.limit = per_minute_;
  if (per_minute_ == 0) return answer;
  const std::lock_guard lock(mutex_);
  Fill(now);
  answer.allowed = level_ >= 1;
  if (answer.allowed) level_ -= static_cast<double>(amount);
  const double per_second = static_cast<double>(per_minute_) / kSecondsPerMinute;
  answer.remaining = std::max<int64_t>(0, static_cast<int64_t>(std::floor(level_)));
  answer.wait_s = std::max(0.0, 1 - level_) / per_second;
  answer.reset_s = (static_cast<double>(per_minute_) - level_) / per_second;
  return answer;
}

void RateLimit::Charge(int64_t amount, TimePoint now) {
  if (per_minute_ == 0) return;
  const std::lock_guard lock(mutex_);
  Fill(now);
  level_ -= static_cast<double>(amount);
}

}  // namespace deepinfer
