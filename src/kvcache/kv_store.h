// The persistent store of one namespace under one root: what the engine, the hand-off and the tools
// call (kv_format.md §15-§19).
//
// Bytes are opaque: a block is layout.payload_bytes() of payload. It is a cache: the last second
// may be lost, a block may be gone at any time, wrong bytes are never returned. Thread rule: any
// thread, except where a call says otherwise.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvcache/block_load.h"
#include "kvcache/erasure.h"
#include "kvcache/janitor.h"
#include "kvcache/miss_reason.h"
#include "kvcache/recovery.h"
#include "kvcache/shared_folders.h"
#include "kvcache/store_context.h"
#include "kvcache/write_behind.h"

namespace deepinfer {

struct LookupResult {
  std::vector<BlockRequest> blocks;       // leading ones that are stored, to be given to BeginLoad
  MissReason reason = MissReason::kNone;  // of the first block that is missing
};

// A block to be stored.
struct PublishRequest {
  BlockKey key;
  BlockKey parent;  // the root for block 0
  uint32_t block_number = 0;
  RetentionClass retention = RetentionClass::kChat;
  uint64_t tenant_tag = 0;
  uint16_t replay_gen = 0;
  // A stored block above this generation, and above replay_gen, gives way to this one.
  uint16_t replace_above_gen = std::numeric_limits<uint16_t>::max();
  bool has_generated = false;
  bool public_scope = false;
  // Longest life in hours, shorter than the class allows: no touch extends it. 0: none.
  int64_t max_lifetime_hours = 0;
};

struct KvStoreStats {
  int64_t blocks = 0;
  int64_t segments = 0;
  int64_t disk_bytes = 0;
  int64_t index_bytes = 0;
  int64_t queued_bytes = 0;
  int64_t reads_in_flight = 0;
  std::array<int64_t, kNumRetentionClasses> segments_by_class{};
  std::string tier_state;       // "on", "degraded: …", "off: …"
  std::string read_backend;     // "io_uring", "threads", "inline"
  std::vector<PeerView> peers;  // in shared mode
};

class KvStore {
 public:
  // Opens or creates the store, becomes the owner of this node's folders and seals what earlier
  // processes left open. Segments are loaded newest first, in the background when the options say
  // so. resource_exhausted when another process of this node has the store open and the options do
  // not say that reading it will do; data_corruption when the folder belongs to another namespace.
  // files and clocks are borrowed.
  static Result<std::unique_ptr<KvStore>> Open(const KvStoreOptions& options, FileSystem* files,
                                               const Clock* clock, const WallClock* wall_clock);
  // Joins every thread, then writes and seals what is queued.
  ~KvStore();

  // The leading blocks that are stored with replay_gen <= max_replay_gen. No system call.
  LookupResult Lookup(std::span<const BlockKey> keys, uint16_t max_replay_gen) const;
  // Another process owns the store: blocks are found and loaded, nothing is written.
  bool read_only() const { return writes_ == nullptr; }
  // Whether another process wrote the block of a Lookup.
  bool IsPeers(const BlockRequest& block) const {
    return context_.segments.ResidenceOf(block.indexed.location.segment) == Residence::kPeer;
  }
  // Starts loading blocks of a Lookup. Partial success is a prefix; the load ends before the store.
  std::unique_ptr<KvLoad> BeginLoad(std::vector<BlockRequest> blocks, int64_t deadline_us);
  // Copies payload [layout.payload_bytes()] before it returns; never waits for the disk.
  PublishResult Publish(const PublishRequest& request, std::span<const std::byte> payload);
  // A record that was read from this store, into another class, as an operator orders.
  PublishResult PublishCopy(BlockWrite write);
  // Marks the blocks of a hit as used now and keeps them at least as long as the class says.
  void Touch(std::span<const BlockKey> keys, RetentionClass retention);

  // The blocks are never served again; their bytes leave the disk when the janitor has rewritten
  // the segments. The number of blocks erased; unsupported in a store that is only read.
  Result<int64_t> EraseKeys(std::span<const BlockKey> keys);
  Result<int64_t> EraseTenant(uint64_t tenant_tag);

  // Writes and commits everything queued; then seals, when asked. Not with background threads.
  void Flush(bool seal) {
    if (!read_only()) writes_->Flush(seal);
  }
  // One round of the writer and of the janitor. Not with background threads.
  void RunWriter() {
    if (!read_only()) writes_->Step();
  }
  // The space ran short while something was written: the janitor should run before more is. Not
  // with background threads, of which one does so.
  bool TakeWantsRoom() { return !read_only() && writes_->TakeWantsRoom(); }
  std::vector<JanitorAction> RunJanitor() {
    return read_only() ? std::vector<JanitorAction>() : janitor_.Step();
  }
  // In shared mode, or of a store that is only read: one look at the other processes. Not with
  // background threads.
  void RunPeers() { shared_->Step(); }
  // Loads the next segment an earlier process left; false when all are loaded. Not with background
  // threads.
  bool LoadNextSegment();
  // Waits until everything queued so far is committed, at most until the deadline; true when it is.
  bool Drain(int64_t deadline_us);

  Janitor* janitor() { return &janitor_; }
  BlockLoader* loader() { return &loader_; }
  const StoreContext& context() const { return context_; }
  const StoreCounters& counters() const { return context_.counters; }
  KvStoreStats Stats() const;
  // Tenants that hold more than their quota, in all or in a class.
  int64_t TenantsOverQuota() const;
  // KvStoreStats::tier_state alone, cheap enough to be asked every second.
  std::string TierState() const { return loader_.TierState(); }

 private:
  KvStore(const KvStoreOptions& options, FileSystem* files, const Clock* clock,
          const WallClock* wall_clock, std::unique_ptr<ReadBackend> backend);

  Status Begin();
  // Follows the folders of the process that holds the lock.
  Status BeginReading(const std::string& folder);
  void StartThreads();
  void WriterLoop();
  void JanitorLoop();
  void PeerLoop();
  // Queues a block if its tenant's quota has room for it.
  PublishResult Offer(BlockWrite write);
  // Makes an epoch folder of this process and takes part with it.
  Result<WriteTarget> MakeFolder();
  // The same after a peer has adopted the one before, with the erasures of this process.
  Result<WriteTarget> FolderAfterAdoption();
  void TakeOver(const std::string& namespace_folder, const EpochFolder& epoch);
  // Prepares a folder of ours for loading; false when it cannot be read now.
  bool Recover(const std::string& folder);
  // A peer has adopted the folders of this process: they are read like any other peer's.
  void GiveFoldersUp();

  StoreContext context_;
  const int64_t opened_us_;
  std::unique_ptr<FileLock> lock_;
  std::vector<std::unique_ptr<FolderRecovery>>
      recoveries_;  // folders with segments still to be loaded
  std::vector<std::string> unread_folders_;
  BlockLoader loader_;
  std::unique_ptr<WriteBehind> writes_;
  Janitor janitor_;
  Eraser eraser_;
  std::unique_ptr<SharedFolders> shared_;  // in shared mode, or to read what another one owns

  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false;
  bool wants_janitor_ = false;
  std::thread writer_;
  std::thread janitor_thread_;
  std::thread peer_thread_;
};

}  // namespace deepinfer
