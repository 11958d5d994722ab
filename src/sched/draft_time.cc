#include "sched/draft_time.h"

#include <algorithm>
#include <iterator>

namespace deepinfer {

double DraftTimeModel::Samples::Median() const {
  std::array<double, kSamples> sorted = us;
  const size_t n = std::min(count, kSamples);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(n / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n));
  return *middle;
}

double DraftTimeModel::Predict(int64_t num_sequences) const {
  const auto above = median_us_.lower_bound(num_sequences);
  double below_us = 0, below_size = 0;
  if (above != median_us_.begin()) {
    const auto& [size, us] = *std::prev(above);
    below_us = us;
    below_size = static_cast<double>(size);
  }
  const auto at = static_cast<double>(num_sequences);
  if (above == median_us_.end()) return below_size > 0 ? below_us * at / below_size : 0.0;
  const double share = (at - below_size) / (static_cast<double>(above->first) - below_size);
  return below_us + share * (above->second - below_us);
}

int64_t DraftTimeModel::Nearest(int64_t num_sequences) const {
  if (median_us_.empty()) return 0;
  return std::clamp(num_sequences, median_us_.begin()->first, median_us_.rbegin()->first);
}

void DraftTimeModel::Observe(int64_t num_sequences, double measured_us, bool is_cold) {
  if (num_sequences <= 0 || !(measured_us > 0.0)) return;
  const double known_us = Predict(num_sequences);
  if (is_cold && known_us > 0.0 && measured_us >= known_us) return;
  Samples& s = by_size_[num_sequences];
  s.us[s.count++ % kSamples] = measured_us;
  if (s.count >= kMinSamples) median_us_[num_sequences] = s.Median();
}

}  // namespace deepinfer
