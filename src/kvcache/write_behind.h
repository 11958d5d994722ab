// Blocks on their way to disk: a bounded queue, group commit, one open segment per class
// (kv_format.md §16). Callers never wait for the disk.
//
// Thread rule: Enqueue from any thread; Step and Flush from one at a time. Owner: the store.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvcache/index_log.h"
#include "kvcache/page_buffer.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_context.h"

namespace deepinfer {

// A block to write, for which the write budget was charged. The payload stands in `record` at
// kRecordHeaderBytes.
struct BlockWrite {
  RecordHeader header;  // identity, class, flags, times; the rest is filled when it is written
  PageBuffer record;
  int64_t deadline_ns = 0;  // decides the bucket
  // A copy of this record: the index moves to the copy instead of gaining an entry.
  std::optional<BlockLocation> copy_of;
  // Room was made for it in this tenant's quota: given back when it is stored or given up.
  std::optional<uint16_t> reserved_for;
  uint64_t serial = 0;  // given by the queue
};

enum class PublishResult : uint8_t {
  kQueued,
  kExists,
  kDroppedFull,
  kDroppedQuota,   // of the tenant, in all or in this class
  kDroppedOff,     // the tenant's key was destroyed, or the store is only read
  kDroppedBudget,  // the device is to last
};

// The epoch folder a process writes to.
struct WriteTarget {
  uint64_t epoch = 0;
  std::shared_ptr<IndexLog> log;
  uint64_t inode = 0;  // of the folder: another one at its path is not ours
  const std::string& folder() const { return log->folder(); }
};

// So many segments are open at a time at most: classes times the buckets that absolute deadlines
// keep open; beyond it the one that was written longest ago is sealed early. The files of a store
// take no more than these beyond its space, however fast blocks come.
inline constexpr size_t kMaxOpenSegments = 8;

class WriteBehind {
 public:
  // Makes a new folder after a peer has adopted the one before.
  using NewTarget = std::function<Result<WriteTarget>()>;

  WriteBehind(StoreContext* context, WriteTarget target, NewTarget new_target);

  // kDroppedFull when the queue holds write_queue_bytes. Copies are taken even then. What is not
  // queued is given back to the write budget.
  PublishResult Enqueue(BlockWrite write);
  // True when the key is queued or written but not committed.
  bool IsPending(const BlockKey& key) const;

  // Writes what is queued; commits when the group is due. Seals full, stale and idle segments.
  void Step();
  // Writes and commits everything now; seals open segments when asked.
  void Flush(bool seal);
  // Returns when there is work, or after the wait.
  void WaitForWork(int64_t wait_us);
  void Wake();

  // Room is getting short, or has run out, since the last call: the janitor should look.
  bool TakeWantsRoom() { return wants_room_.exchange(false); }

  int64_t queued_bytes() const;
  // Something is queued or not committed.
  bool busy() const;
  std::string folder() const;
  // The log of the folder if it is the one written to, else null.
  std::shared_ptr<IndexLog> LogFor(const std::string& folder) const;
  // The folder may not be ours any more: looked at before anything else is written.
  void SuspectFence() { fence_suspected_ = true; }
  // Of the blocks that are queued or not committed: none of these will be served.
  void Discard(std::span<const BlockKey> keys);
  void DiscardTenant(uint64_t tenant_tag);

 private:
  struct Uncommitted {
    IndexEntry entry;
    uint32_t segment = 0;
    uint32_t record = 0;
    uint32_t touched_minute = 0;
    bool absolute_deadline = false;
    std::optional<BlockLocation> copy_of;
    uint64_t serial = 0;
  };
  struct OpenSegment {
    std::unique_ptr<SegmentWriter> writer;
    uint32_t id = 0;
    int64_t last_write_us = 0;
    bool dirty = false;
  };

  void WriteQueued();
  void Write(BlockWrite write);
  bool SealForDisk(BlockWrite* write) const;
  // The open segment for this class and bucket, with room; null after an error, or when there is no
  // space for another.
  OpenSegment* SegmentFor(RetentionClass retention, uint64_t bucket_hour);
  OpenSegment* CreateSegment(RetentionClass retention, uint64_t bucket_hour);
  bool MayCreateSegment();
  Superblock NewSuperblock(RetentionClass retention, uint64_t bucket_hour);
  void Commit();
  void Publish(const Uncommitted& block);
  // In shared mode: the folder is still at its path. Otherwise everything not committed is dropped,
  // and writing goes on in a new folder as soon as there is one.
  bool HoldsFolder();
  bool IsErased(const Uncommitted& block) const;
  bool IsUnwanted(const BlockKey& key, uint64_t tenant_tag, uint64_t serial) const;
  void EraseUnwanted(std::span<const Uncommitted> group);
  // Both take the segment out of open_. An abandoned one cannot be trusted to take more records;
  // what it committed stays readable.
  void Seal(uint32_t id);
  void Abandon(uint32_t id, const Status& status);
  void GiveUp(uint32_t id);
  void SealStale();
  OpenSegment TakeOpen(uint32_t id);
  void Drop(const BlockKey& key, DropReason reason = DropReason::kError);
  // The block is not on its way any more; under mutex_.
  void Leave(const BlockKey& key);

  StoreContext* context_;
  NewTarget new_target_;
  std::atomic<bool> fence_suspected_{false};
  std::atomic<bool> wants_room_{false};
  bool fenced_ = false;
  int64_t retry_us_ = 0;  // of making a new folder
  uint64_t next_sequence_ = 1;
  uint64_t next_segment_ = 1;
  std::vector<OpenSegment> open_;
  std::vector<Uncommitted> group_;
  int64_t group_bytes_ = 0;
  int64_t group_began_us_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<BlockWrite> queue_;
  struct Pending {
    std::optional<uint16_t> reserved_for;
    RetentionClass retention = RetentionClass::kBatch;
  };
  std::unordered_map<BlockKey, Pending, BlockKeyHash> pending_;
  WriteTarget target_;  // set under mutex_ by the writer, which reads it without
  // Erased while on their way: what was queued before the given serial number.
  std::unordered_map<BlockKey, uint64_t, BlockKeyHash> unwanted_keys_;
  std::unordered_map<uint64_t, uint64_t> unwanted_tenants_;
  uint64_t next_serial_ = 1;
  int64_t queued_bytes_ = 0;
};

}  // namespace deepinfer
