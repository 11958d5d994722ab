#include "sched/draft_time.h"

#include <algorithm>

namespace deepinfer {

double DraftTimeModel::Samples::Median() const {
  std::array<double, kSamples> sorted = us;
  const size_t n = std::min(count, kSamples);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(n / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n));
  return *middle;
}

double DraftTimeModel::Predict(int64_t num_sequences) const {
  double below_us = 0, below_size = 0;
  for (const auto& [size, samples] : by_size_) {
    if (!samples.known()) continue;
    const double us = samples.Median(), at = static_cast<double>(size);
    if (size >= num_sequences) {
      const double share = (static_cast<double>(num_sequences) - below_size) / (at - below_size);
      return below_us + share * (us - below_us);
    }
    below_us = us;
    below_size = at;
  }
  return below_size > 0 ? below_us * static_cast<double>(num_sequences) / below_size : 0.0;
}

bool DraftTimeModel::Covers(int64_t num_sequences) const {
  bool below = false, above = false;
  for (const auto& [size, samples] : by_size_) {
    if (!samples.known()) continue;
    below = below || size <= num_sequences;
    above = above || size >= num_sequences;
  }
  return below && above;
}

void DraftTimeModel::Observe(int64_t num_sequences, double measured_us) {
  if (num_sequences <= 0) return;
  Samples& s = by_size_[num_sequences];
  s.us[s.count++ % kSamples] = measured_us;
}

}  // namespace deepinfer
