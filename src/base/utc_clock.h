// The calendar's time now, for what outlives a process or is read by people. Code that a test
// drives takes it as a function or through an interface of its own. Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepinfer {

// Units since 1970, UTC: UtcNow<std::chrono::seconds>().
template <typename Unit>
int64_t UtcNow() {
  return std::chrono::duration_cast<Unit>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace deepinfer
