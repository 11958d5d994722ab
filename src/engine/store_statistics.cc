#include "engine/store_statistics.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "kvcache/kv_store.h"
#include "kvcache/store_folders.h"

namespace deepinfer {

namespace {

constexpr size_t kMostTenants = 20;

std::map<std::string, int64_t> LargestTenants(const std::map<uint64_t, int64_t>& bytes) {
  std::vector<std::pair<uint64_t, int64_t>> tenants(bytes.begin(), bytes.end());
  std::ranges::sort(tenants, std::greater(), &std::pair<uint64_t, int64_t>::second);
  if (tenants.size() > kMostTenants) tenants.resize(kMostTenants);
  std::map<std::string, int64_t> largest;
  for (const auto& [tag, held] : tenants) {
    if (held > 0) largest[fmt::format("{:016x}", tag)] = held;
  }
  return largest;
}

// A node may own several folders: the one that was read last of all counts.
std::map<std::string, double> LagByNode(const std::vector<PeerView>& peers) {
  std::map<std::string, double> lags;
  for (const PeerView& peer : peers) {
    const auto folder = ParseEpochFolderName(peer.folder.substr(peer.folder.rfind('/') + 1));
    if (!folder) continue;
    double& lag = lags[folder->node];
    lag = std::max(lag, static_cast<double>(peer.lag_us) * 1e-6);
  }
  return lags;
}

}  // namespace

StoreStatistics CollectStoreStatistics(const KvStore& store) {
  const KvStoreStats stats = store.Stats();
  const StoreCounters& counters = store.counters();
  const KvBlockLayout& layout = store.context().options.layout;
  StoreStatistics s;
  s.enabled = true;
  s.tier_state = stats.tier_state;
  s.read_backend = stats.read_backend;
  s.blocks = stats.blocks;
  s.segments = stats.segments;
  for (size_t i = 0; i < kNumRetentionClasses; ++i) {
    s.disk_bytes_by_class[i] = stats.segments_by_class[i] * layout.segment_bytes();
    s.retention_breaches[i] = counters.retention_breaches[i];
    s.quota_evictions[i] = counters.quota_evictions[i];
  }
  s.index_bytes = stats.index_bytes;
  s.write_queue_bytes = stats.queued_bytes;
  s.reads_in_flight = stats.reads_in_flight;
  s.record_bytes = layout.record_bytes();
  s.duplicate_blocks = counters.already_stored;
  s.written_blocks = counters.written_blocks;
  s.copied_blocks = counters.copied_blocks;
  for (size_t i = 0; i < kNumDropReasons; ++i) {
    s.dropped_by_reason[i] = counters.dropped_by_reason[i];
  }
  s.spared_writes = counters.spared_writes;
  s.offered_blocks = counters.published + counters.already_stored;
  s.write_errors = counters.write_errors;
  s.loaded_blocks = counters.loaded_blocks;
  s.read_errors = counters.read_errors;
  s.corrupt_records = counters.corrupt_records;
  s.repaired_segments = counters.repaired_segments;
  s.damaged_log_entries = counters.damaged_log_entries;
  s.quarantined_segments = counters.quarantined_segments;
  s.foreign_segments = counters.foreign_segments;
  s.late_blocks = counters.late_blocks;
  s.expired_blocks = counters.expired_blocks;
  s.erased_blocks = counters.erased_blocks;
  s.removed_segments = counters.removed_segments;
  s.clock_jumps = counters.clock_jumps;
  s.recovery_seconds = static_cast<double>(counters.recovery_us) * 1e-6;
  s.tenants_over_quota = store.TenantsOverQuota();
  s.bytes_by_tenant = LargestTenants(store.context().BytesByTenant());
  s.peer_lag_seconds = LagByNode(stats.peers);
  for (const std::atomic<int64_t>& count : counters.commit_times.counts) {
    s.commits_by_seconds.push_back(static_cast<double>(count));
  }
  s.commit_seconds = static_cast<double>(counters.commit_times.sum_us) * 1e-6;
  return s;
}

}  // namespace deepinfer
