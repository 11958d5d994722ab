#include "kvcache/reuse_model.h"

#include <algorithm>

namespace deepinfer {
namespace {

// What is assumed before anything was seen: as many observations, a third of them used again,
// evenly over the rest times. Few enough that a minute of traffic overrules them.
constexpr double kPriorRests = 30;
constexpr double kPriorShareEnded = 1.0 / 3;

}  // namespace

size_t ReuseModel::BucketOf(int64_t minutes) {
  return static_cast<size_t>(std::ranges::lower_bound(kBucketEnds, minutes) - kBucketEnds.begin());
}

void ReuseModel::BeginRest(RetentionClass retention, uint8_t touches) {
  const std::lock_guard lock(mutex_);
  At(retention, touches).begun += 1;
}

void ReuseModel::EndRest(RetentionClass retention, uint8_t touches, int64_t minutes) {
  const std::lock_guard lock(mutex_);
  At(retention, touches).ended[BucketOf(minutes)] += 1;
}

double ReuseModel::ChanceOfReuse(RetentionClass retention, uint8_t touches, int64_t minutes) const {
  const std::lock_guard lock(mutex_);
  const Rests& rests = rests_[static_cast<size_t>(retention)][GroupOf(touches)];
  const double prior_each = kPriorRests * kPriorShareEnded / kNumBuckets;
  const size_t bucket = BucketOf(minutes);
  double ended_before = 0;
  double ended_later = 0;
  for (size_t i = 0; i < kNumBuckets; ++i) {
    (i < bucket ? ended_before : ended_later) += rests.ended[i] + prior_each;
  }
  const double still_resting = rests.begun + kPriorRests - ended_before;
  return still_resting <= 0 ? 1.0 : std::min(1.0, ended_later / still_resting);
}

void ReuseModel::Halve() {
  const std::lock_guard lock(mutex_);
  for (auto& groups : rests_) {
    for (Rests& rests : groups) {
      rests.begun /= 2;
      for (double& count : rests.ended) count /= 2;
    }
  }
}

}  // namespace deepinfer
