// What the parts of a store share: options, files, clocks, index, segments, tenants and counters.
// Thread rule: every member says its own. Owner: the store; parts borrow it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "kvcache/block_index.h"
#include "kvcache/departed_blocks.h"
#include "kvcache/drop_reason.h"
#include "kvcache/file_system.h"
#include "kvcache/index_log.h"
#include "kvcache/reuse_model.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_options.h"
#include "kvcache/tenant_keys.h"
#include "kvcache/write_budget.h"

namespace deepinfer {

// How long commits take. Upper ends of the buckets; the last one has no end.
struct CommitTimes {
  static constexpr std::array<int64_t, 9> kBoundsUs = {
      1'000, 3'000, 10'000, 30'000, 100'000, 300'000, 1'000'000, 3'000'000, 10'000'000};
  std::array<std::atomic<int64_t>, kBoundsUs.size() + 1> counts{};
  std::atomic<int64_t> sum_us{0};

  void Add(int64_t us) {
    ++counts[static_cast<size_t>(std::ranges::lower_bound(kBoundsUs, us) - kBoundsUs.begin())];
    sum_us += us;
  }
};

struct StoreCounters {
  void CountDrop(DropReason reason) {
    ++dropped_writes;
    ++dropped_by_reason[static_cast<size_t>(reason)];
  }

  std::atomic<int64_t> published{0};
  std::atomic<int64_t> already_stored{0};
  std::atomic<int64_t> dropped_writes{0};  // for any of the reasons
  std::array<std::atomic<int64_t>, kNumDropReasons> dropped_by_reason{};
  std::atomic<int64_t> spared_writes{0};   // refused to save the device
  std::atomic<int64_t> written_blocks{0};  // new ones, committed
  std::atomic<int64_t> copied_blocks{0};   // copied forward, committed
  std::atomic<int64_t> write_errors{0};
  std::atomic<int64_t> loaded_blocks{0};
  std::atomic<int64_t> read_errors{0};
  std::atomic<int64_t> corrupt_records{0};
  std::atomic<int64_t> keyless_blocks{0};  // encrypted, and the key is not here
  std::atomic<int64_t> quarantined_segments{0};
  std::atomic<int64_t> foreign_segments{0};     // of another version or layout; left alone
  std::atomic<int64_t> repaired_segments{0};    // whose superblock was made again
  std::atomic<int64_t> damaged_log_entries{0};  // of index logs, passed over
  std::atomic<int64_t> late_blocks{0};          // not there at the deadline of their load
  std::atomic<int64_t> expired_blocks{0};
  std::atomic<int64_t> erased_blocks{0};
  std::atomic<int64_t> removed_segments{0};
  std::atomic<int64_t> sealed_segments{0};
  std::atomic<int64_t> moved_buckets{0};
  std::atomic<int64_t> clock_jumps{0};
  std::atomic<int64_t> adopted_folders{0};
  std::atomic<int64_t> fenced{0};       // our own folder was adopted by a peer
  std::atomic<int64_t> recovery_us{0};  // from the begin until the index was full; 0: not yet
  CommitTimes commit_times;
  // Blocks taken because their tenant was over its quota, by class; breaches as well.
  std::array<std::atomic<int64_t>, kNumRetentionClasses> quota_evictions{};
  // Blocks taken before their deadline, by class.
  std::array<std::atomic<int64_t>, kNumRetentionClasses> retention_breaches{};
};

enum class SegmentState : uint8_t { kOpen, kSealed, kQuarantined };

struct SegmentInfo {
  uint32_t id = 0;
  std::string path;
  std::string folder;   // epoch folder, which holds its index.log
  uint64_t number = 0;  // in the folder
  Superblock superblock;
  SegmentState state = SegmentState::kSealed;
  int64_t num_records = 0;
  bool peer = false;      // in a folder that another process owns
  int32_t faults = 0;     // records that failed a check
  bool rewrite = false;   // holds erased records: to be rewritten without them
  bool draining = false;  // its live records are being copied; removed when they are gone
  bool written = false;   // a writer holds it: not to be removed, whatever its state
};

// What a segment in a folder of this process holds, whatever state its superblock is in: its footer
// tells, else its records and the log of its folder.
Result<SegmentContent> ReadOwnSegment(FileSystem* files, const SegmentInfo& info);

// Who owns a segment.
enum class Residence : uint8_t { kGone, kOwn, kPeer };

// Segments by number. Thread rule: any thread, one lock, never held during a system call.
class SegmentTable {
 public:
  SegmentTable(FileSystem* files, bool direct) : files_(files), direct_(direct) {}

  uint32_t Add(SegmentInfo info);
  std::optional<SegmentInfo> Find(uint32_t id) const;
  std::vector<SegmentInfo> List() const;
  template <typename Change>
  void Update(uint32_t id, Change change) {
    const std::lock_guard lock(mutex_);
    if (const auto it = segments_.find(id); it != segments_.end()) change(&it->second.info);
  }
  // Forgets the segment and closes its file once the last reader is done.
  void Remove(uint32_t id);
  // The file for reading, opened when needed. not_found for segments that are gone or not to be
  // read.
  Result<std::shared_ptr<File>> OpenForRead(uint32_t id);
  // The same without a system call; null when it would take one.
  std::shared_ptr<File> OpenedFile(uint32_t id) const;
  Residence ResidenceOf(uint32_t id) const;
  // The numbers of the segments in a folder.
  std::vector<uint32_t> InFolder(const std::string& folder) const;
  // Segments of this process, peers' not counted.
  int64_t num_own() const;
  // Peers' segments whose file was not where it was expected, since the last call.
  void NoteMissing(uint32_t id);
  std::vector<uint32_t> TakeMissing();

 private:
  struct Entry {
    SegmentInfo info;
    std::shared_ptr<File> file;
  };
  // Descriptors are few; a segment is opened again when it is read after being closed.
  static constexpr size_t kMaxOpenFiles = 512;

  FileSystem* files_;
  bool direct_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Entry> segments_;
  std::vector<uint32_t> opened_;  // oldest first
  std::set<uint32_t> missing_;
  uint32_t next_id_ = 1;
};

// Tenants by tag; what they hold is counted by the index. Thread rule: any thread, one lock.
class TenantTable {
 public:
  // The number of a tag; 0 for all tags beyond the first 65,535.
  uint16_t SlotOf(uint64_t tag);
  // 0 for the shared slot.
  uint64_t TagOf(uint16_t slot) const;
  // All of them by number; the first stands for those beyond the table.
  std::vector<uint64_t> Tags() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, uint16_t> slots_;
  std::vector<uint64_t> tags_{0};
};

// What was erased since the store was opened: segments that are loaded later may hold it, and what
// was read of their logs before does not tell. Thread rule: any thread, under the mutex.
struct ErasedSinceOpen {
  std::mutex mutex;  // held from the look at it until the blocks are in the index
  ErasedNames names;
};

struct StoreContext {
  StoreContext(const KvStoreOptions& o, FileSystem* f, const Clock* c, const WallClock* w)
      : options(o),
        files(f),
        clock(c),
        wall_clock(w),
        segments(f, o.direct_io),
        quotas(o.quotas, &index, o.layout.record_bytes()),
        write_budget(static_cast<int64_t>(o.writes_per_day * static_cast<double>(o.space_bytes)),
                     o.layout.record_bytes(), o.layout.segment_bytes(), c->NowUs()) {}

  const RetentionPolicy& Policy(RetentionClass retention) const {
    return options.retention[static_cast<size_t>(retention)];
  }
  // The block lies at this place, which this process owns or a peer does. A new entry, or a better
  // place for one whose segment is gone or belongs to a peer, or whose generation is higher. True
  // when the index points there now.
  bool Enter(const BlockKey& key, const IndexedBlock& block);
  // The same for many.
  void EnterAll(std::span<const KeyedBlock> blocks);
  // Bytes in the index by tenant.
  std::map<uint64_t, int64_t> BytesByTenant() const;
  // The block is gone from the index for good.
  void Forget(const BlockKey& key, const IndexedBlock& block);
  // The same for a block whose absence is to be explained.
  void Forget(const BlockKey& key, const IndexedBlock& block, MissReason reason) {
    Forget(key, block);
    departed.Note(key, reason);
  }
  // The segments are gone: their entries are forgotten, and returned. Looks at the whole index.
  std::vector<IndexedBlock> ForgetSegments(const std::set<uint32_t>& ids);

  KvStoreOptions options;
  FileSystem* files;
  const Clock* clock;
  const WallClock* wall_clock;
  BlockIndex index;
  DepartedBlocks departed;
  ErasedSinceOpen erased;
  SegmentTable segments;
  TenantTable tenants;
  QuotaBook quotas;
  ReuseModel reuse;
  WriteBudget write_budget;
  std::unique_ptr<TenantKeys> keys;  // set before the first thread starts
  StoreCounters counters;
};

}  // namespace deepinfer
