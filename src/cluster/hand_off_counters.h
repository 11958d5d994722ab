// What a worker has moved to and from others. Every acquired thing is released in the end.
// Thread rule: value.
#pragma once

#include <cstdint>

namespace deepinfer {

struct HandOffCounters {
  int64_t tickets_granted = 0;  // landings for states that come
  int64_t tickets_released = 0;
  int64_t pins_acquired = 0;  // states that are kept for being sent
  int64_t pins_released = 0;
  int64_t committed = 0;  // states that were sent and taken
  int64_t failed = 0;     // and those that were not
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t extents_nacked = 0;  // arrived broken
  int64_t bytes_by_ucx = 0;    // of those received
};

}  // namespace deepinfer
