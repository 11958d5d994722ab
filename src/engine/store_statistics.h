// What a persistent store has done since it was opened and what it holds, as plain numbers for
// metrics and log lines (docs/api.md §16).
// Thread rule: values; Collect from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvcache/drop_reason.h"
#include "kvcache/format.h"

namespace deepinfer {

class KvStore;

struct StoreStatistics {
  bool enabled = false;  // false: there is no store and everything else is 0
  std::string tier_state = "off: not configured";
  std::string read_backend;

  // Now.
  int64_t blocks = 0;
  int64_t segments = 0;
  std::array<int64_t, kNumRetentionClasses> disk_bytes_by_class{};
  int64_t index_bytes = 0;
  int64_t write_queue_bytes = 0;
  int64_t reads_in_flight = 0;
  double recovery_seconds = 0;  // from the begin until the index was full; 0 until then
  std::map<std::string, int64_t> bytes_by_tenant;  // tag in hex; the largest 20
  int64_t tenants_over_quota = 0;
  std::map<std::string, double> peer_lag_seconds;  // node; since its log was read to the end

  // Since the start.
  int64_t record_bytes = 0;  // of one block, times the counts below
  int64_t offered_blocks = 0;
  int64_t duplicate_blocks = 0;
  int64_t written_blocks = 0;
  int64_t copied_blocks = 0;
  std::array<int64_t, kNumDropReasons> dropped_by_reason{};
  int64_t spared_writes = 0;  // refused to save the device
  int64_t write_errors = 0;
  int64_t loaded_blocks = 0;
  int64_t read_errors = 0;
  int64_t corrupt_records = 0;
  int64_t repaired_segments = 0;
  int64_t damaged_log_entries = 0;
  int64_t quarantined_segments = 0;
  int64_t foreign_segments = 0;
  int64_t late_blocks = 0;
  int64_t expired_blocks = 0;
  int64_t erased_blocks = 0;
  int64_t removed_segments = 0;
  int64_t clock_jumps = 0;
  std::array<int64_t, kNumRetentionClasses> retention_breaches{};
  std::array<int64_t, kNumRetentionClasses> quota_evictions{};
  std::vector<double> commits_by_seconds;  // in the buckets of CommitTimes
  double commit_seconds = 0;
};

StoreStatistics CollectStoreStatistics(const KvStore& store);

}  // namespace deepinfer
