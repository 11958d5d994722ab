// Cuts the time of one device into overhead lines that add up to it: nothing is counted twice and
// nothing is left out, whenever the cuts are made.
// Thread rule: one object, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "economics/overhead_record.h"

namespace deepinfer {

// What is known of a device since its engine began.
struct DeviceTime {
  int64_t accounted_ns = 0;  // steps that began within this time have ended and are in the rest
  int64_t steps_ns = 0;
  int64_t unclaimed_ns = 0;  // part of steps_ns that is on no line of a request
  int64_t probes_ns = 0;     // part of steps_ns that health checks took
};

class OverheadAccount {
 public:
  // engine_began_ns, utc_offset_us: the monotonic instant at which the engine began, and what has
  // to be added to microseconds of that clock for UTC.
  OverheadAccount(OverheadScope scope, int64_t device, int64_t engine_began_ns,
                  int64_t utc_offset_us);

  // The line of the time from process_began_ns to the begin of the engine.
  OverheadRecord Startup(int64_t process_began_ns) const;

  // The lines of the time since the last cut; no line of a kind that had none, but for the last
  // cut, which always says that it is the last.
  std::vector<OverheadRecord> Cut(const DeviceTime& now, bool is_last);

 private:
  OverheadRecord Between(OverheadKind kind, int64_t from_ns, int64_t to_ns) const;

  const OverheadScope scope_;
  const int64_t device_;
  const int64_t began_ns_;
  const int64_t utc_offset_us_;
  DeviceTime last_;
};

}  // namespace deepinfer
