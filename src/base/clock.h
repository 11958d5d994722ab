// Monotonic time in microseconds, behind an interface so that tests and the simulator drive it.
// Thread rule: Now may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepinfer {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowUs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowUs() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace deepinfer
