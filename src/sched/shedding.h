// When to refuse requests so that those that are admitted keep their promise (docs/cluster.md §4).
// Thread rule: one caller at a time.
#pragma once

namespace deepinfer {

class Shedding {
 public:
  // ratio: predicted time of this request over the time that was promised. Refuses from 1.0 on and
  // until it is down to 0.9: a limit without play would let every second request in and miss both.
  bool Admits(double ratio) {
    if (ratio > kBegin) shedding_ = true;
    if (ratio <= kEnd) shedding_ = false;
    return !shedding_;
  }
  bool shedding() const { return shedding_; }

 private:
  static constexpr double kBegin = 1.0, kEnd = 0.9;
  bool shedding_ = false;
};

}  // namespace deepinfer
