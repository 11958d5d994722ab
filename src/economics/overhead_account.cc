#include "economics/overhead_account.h"

#include <utility>

namespace deepinfer {

OverheadAccount::OverheadAccount(OverheadScope scope, int64_t device, int64_t engine_began_ns,
                                 int64_t utc_offset_us)
    : scope_(std::move(scope)),
      device_(device),
      began_ns_(engine_began_ns),
      utc_offset_us_(utc_offset_us) {}

OverheadRecord OverheadAccount::Between(OverheadKind kind, int64_t from_ns, int64_t to_ns) const {
  OverheadRecord record;
  record.kind = kind;
  record.scope = scope_;
  record.device = device_;
  record.from_ns = from_ns;
  record.to_ns = to_ns;
  record.from_utc_us = from_ns / 1000 + utc_offset_us_;
  record.to_utc_us = to_ns / 1000 + utc_offset_us_;
  return record;
}

OverheadRecord OverheadAccount::Startup(int64_t process_began_ns) const {
  OverheadRecord record = Between(OverheadKind::kStartup, process_began_ns, began_ns_);
  record.device_ns = began_ns_ - process_began_ns;
  return record;
}

std::vector<OverheadRecord> OverheadAccount::Cut(const DeviceTime& now, bool is_last) {
  const DeviceTime before = std::exchange(last_, now);
  const int64_t from_ns = began_ns_ + before.accounted_ns;
  const int64_t to_ns = began_ns_ + now.accounted_ns;
  const int64_t steps_ns = now.steps_ns - before.steps_ns;
  const int64_t unclaimed_ns = now.unclaimed_ns - before.unclaimed_ns;
  std::vector<OverheadRecord> records;
  OverheadRecord probe = Between(OverheadKind::kProbe, from_ns, to_ns);
  probe.device_ns = now.probes_ns - before.probes_ns;
  OverheadRecord idle = Between(OverheadKind::kIdle, from_ns, to_ns);
  idle.device_ns = to_ns - from_ns - steps_ns + unclaimed_ns;
  idle.requests_ns = steps_ns - unclaimed_ns - probe.device_ns;
  idle.is_last = is_last;
  if (probe.device_ns != 0) records.push_back(std::move(probe));
  if (is_last || to_ns != from_ns) records.push_back(std::move(idle));
  return records;
}

}  // namespace deepinfer
