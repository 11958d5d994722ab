// How likely a block is used again, learnt online from how long blocks rested between uses
// (kv_format.md §19). Decides which segment goes first when space is short.
// Thread rule: any thread, one lock.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "kvcache/format.h"

namespace deepinfer {

class ReuseModel {
 public:
  // A block of this class that had been used `touches` times begins to rest (written, or used).
  void BeginRest(RetentionClass retention, uint8_t touches);
  // It is used again after `minutes` of rest.
  void EndRest(RetentionClass retention, uint8_t touches, int64_t minutes);
  // Chance that a block which has rested for `minutes` is used again.
  double ChanceOfReuse(RetentionClass retention, uint8_t touches, int64_t minutes) const;
  // Old observations count half: to be called once a day.
  void Halve();

 private:
  // Upper ends of the rest times, in minutes; the last bucket has no end.
  static constexpr std::array<int64_t, 14> kBucketEnds = {1,   2,   5,   10,   20,   45,   90,
                                                          180, 360, 720, 1440, 2880, 5760, 10080};
  static constexpr size_t kNumBuckets = kBucketEnds.size() + 1;
  static constexpr size_t kNumTouchGroups = 3;  // never, once, more often

  struct Rests {
    double begun = 0;
    std::array<double, kNumBuckets> ended{};
  };

  static size_t BucketOf(int64_t minutes);
  static size_t GroupOf(uint8_t touches) { return touches < 2 ? touches : 2; }
  Rests& At(RetentionClass retention, uint8_t touches) {
    return rests_[static_cast<size_t>(retention)][GroupOf(touches)];
  }

  mutable std::mutex mutex_;
  std::array<std::array<Rests, kNumTouchGroups>, kNumRetentionClasses> rests_{};
};

}  // namespace deepinfer
