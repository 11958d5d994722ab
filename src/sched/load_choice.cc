#include "sched/load_choice.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {

namespace {

constexpr double kHalfLifeUs = 30e6;
// Below this weight of one load, about three minutes old, nothing is known any more.
constexpr double kLeastWeight = 1.0 / 64;
// A load may take half of the time it saves: given up then, it has cost half a prefill.
constexpr double kWaitShare = 0.5;
// While the speed of prefill is unknown.
constexpr int64_t kUnknownSpeedWaitUs = 2'000'000;

}  // namespace

double LoadTimeModel::Fade(int64_t now_us) const {
  return std::exp2(-static_cast<double>(std::max<int64_t>(0, now_us - updated_us_)) / kHalfLifeUs);
}

void LoadTimeModel::Observe(int64_t num_tokens, int64_t elapsed_us, int64_t now_us) {
  const double keep = Fade(now_us);
  const auto n = static_cast<double>(num_tokens);
  // A time of 0 would read as unknown.
  const auto t = static_cast<double>(std::max<int64_t>(1, elapsed_us));
  weight_ = weight_ * keep + 1;
  tokens_ = tokens_ * keep + n;
  time_us_ = time_us_ * keep + t;
  tokens_squared_ = tokens_squared_ * keep + n * n;
  tokens_time_ = tokens_time_ * keep + n * t;
  updated_us_ = std::max(updated_us_, now_us);
}

double LoadTimeModel::PredictUs(int64_t num_tokens, int64_t now_us) const {
  if (weight_ * Fade(now_us) < kLeastWeight) return 0;
  const auto n = static_cast<double>(num_tokens);
  const double proportional = time_us_ / tokens_;
  const double spread = weight_ * tokens_squared_ - tokens_ * tokens_;
  double per_token = proportional;
  // Loads of one size say nothing about the fixed part.
  if (spread > 1e-6 * tokens_ * tokens_) {
    per_token = (weight_ * tokens_time_ - tokens_ * time_us_) / spread;
    per_token = std::clamp(per_token, 0.0, proportional);
  }
  const double fixed = (time_us_ - per_token * tokens_) / weight_;
  return fixed + per_token * n;
}

LoadChoice ChooseLoad(const LoadInput& input) {
  if (input.load_us > 0 && input.saved_us > 0 && input.load_us >= input.saved_us) return {};
  int64_t wait_us =
      input.saved_us > 0 ? static_cast<int64_t>(kWaitShare * input.saved_us) : kUnknownSpeedWaitUs;
  // A request that is late already gains by a load that is faster than computing.
  wait_us = std::min(wait_us, std::max<int64_t>(0, input.slack_us));
  return {true, std::max(wait_us, input.min_wait_us)};
}

}  // namespace deepinfer
