// Calendar time that stands still until the test moves it.
// Thread rule: any thread.
#pragma once

#include <atomic>

#include "kvcache/wall_clock.h"

namespace deepinfer {

class FakeWallClock final : public WallClock {
 public:
  int64_t UnixNs() const override { return unix_ns_; }
  void AdvanceHours(int64_t hours) { unix_ns_ += hours * kNsPerHour; }

 private:
  // 2026-01-01.
  std::atomic<int64_t> unix_ns_{int64_t{1'767'225'600} * 1'000'000'000};
};

}  // namespace deepinfer
