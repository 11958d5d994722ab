// Calendar time, for deadlines that outlive a process; behind an interface like base/clock.h.
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/utc_clock.h"

namespace deepinfer {

inline constexpr int64_t kNsPerMinute = int64_t{60} * 1'000'000'000;
inline constexpr int64_t kNsPerHour = 60 * kNsPerMinute;

class WallClock {
 public:
  virtual ~WallClock() = default;
  virtual int64_t UnixNs() const = 0;
};

class SystemWallClock final : public WallClock {
 public:
  int64_t UnixNs() const override { return UtcNow<std::chrono::nanoseconds>(); }
};

}  // namespace deepinfer
