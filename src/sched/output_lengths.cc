#include "sched/output_lengths.h"

#include <algorithm>

namespace deepinfer {

void OutputLengths::Add(int64_t num_tokens) {
  if (last_.size() < kMost) {
    last_.push_back(num_tokens);
    return;
  }
  last_[next_] = num_tokens;
  next_ = (next_ + 1) % kMost;
}

std::optional<int64_t> OutputLengths::P90() const {
  if (last_.size() < kLeast) return std::nullopt;
  std::vector<int64_t> sorted = last_;
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() * 9 / 10);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

}  // namespace deepinfer
