// Deadlines of gRPC calls by the clock that never jumps: one of the calendar, which may be set
// back, would come hours late. Thread rule: any thread.
#pragma once

#include <grpc/support/time.h>

#include <chrono>

namespace deepinfer {

inline gpr_timespec DeadlineIn(std::chrono::milliseconds limit) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis(limit.count(), GPR_TIMESPAN));
}

}  // namespace deepinfer
