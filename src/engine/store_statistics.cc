#include "engine/store_statistics.h"

#include "kvcache/kv_store.h"

namespace deepinfer {

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
  }
  s.index_bytes = stats.index_bytes;
  s.write_queue_bytes = stats.queued_bytes;
  s.reads_in_flight = stats.reads_in_flight;
  s.record_bytes = layout.record_bytes();
  s.duplicate_blocks = counters.already_stored;
  s.written_blocks = counters.written_blocks;
  s.copied_blocks = counters.copied_blocks;
  s.dropped_writes = counters.dropped_writes;
  s.offered_blocks = counters.published + counters.already_stored;
  s.write_errors = counters.write_errors;
  s.loaded_blocks = counters.loaded_blocks;
  s.read_errors = counters.read_errors;
  s.corrupt_records = counters.corrupt_records;
  s.quarantined_segments = counters.quarantined_segments;
  s.foreign_segments = counters.foreign_segments;
  s.late_blocks = counters.late_blocks;
  s.expired_blocks = counters.expired_blocks;
  s.erased_blocks = counters.erased_blocks;
  s.removed_segments = counters.removed_segments;
  s.clock_jumps = counters.clock_jumps;
  return s;
}

}  // namespace deepinfer
