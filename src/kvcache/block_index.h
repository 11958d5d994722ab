// Where each stored block lies: key to segment and record, 24 bytes an entry, for lookups without a
// system call (kv_format.md §14). The first 11 bytes of a key find the entry; the full key is
// checked against the record on every read. Counts what each tenant holds by class.
//
// Thread rule: any thread; sharded reader-writer locks. Owner: the store.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "kvcache/format.h"

namespace deepinfer {

// Minutes since 2020: 24 bits last until 2051.
inline constexpr int64_t kStoreEpochNs = int64_t{1'577'836'800} * 1'000'000'000;
constexpr uint32_t StoreMinute(int64_t unix_ns) {
  const int64_t minute = (unix_ns - kStoreEpochNs) / (int64_t{60} * 1'000'000'000);
  return static_cast<uint32_t>(minute < 0 ? 0 : minute > 0xFFFFFF ? 0xFFFFFF : minute);
}
constexpr int64_t StoreMinuteToUnixNs(uint32_t minute) {
  return kStoreEpochNs + int64_t{minute} * 60 * 1'000'000'000;
}

struct BlockLocation {
  uint32_t segment = 0;  // number in the store's table, not the number on disk
  uint32_t record = 0;

  friend bool operator==(const BlockLocation&, const BlockLocation&) = default;
};

struct IndexedBlock {
  BlockLocation location;
  RetentionClass retention = RetentionClass::kChat;
  bool absolute_deadline = false;  // a touch does not extend its life
  uint8_t touches = 0;             // hits since it was written, saturating
  uint8_t replay_gen = 0;          // saturating
  uint16_t tenant = 0;             // number in the store's table of tenants
  uint32_t touched_minute = 0;     // of the last touch, or of the write; StoreMinute
};

struct KeyedBlock {
  BlockKey key;
  IndexedBlock block;
};

// Blocks by tenant and class. Thread rule: any thread.
class TenantCounts {
 public:
  TenantCounts() = default;
  ~TenantCounts();
  TenantCounts(const TenantCounts&) = delete;
  TenantCounts& operator=(const TenantCounts&) = delete;

  void Add(uint16_t tenant, RetentionClass retention, int64_t blocks);
  int64_t Of(uint16_t tenant, RetentionClass retention) const;

 private:
  static constexpr size_t kChunkTenants = 256;
  using Chunk = std::array<std::array<std::atomic<int64_t>, kNumRetentionClasses>, kChunkTenants>;
  std::array<std::atomic<Chunk*>, 65'536 / kChunkTenants> chunks_{};  // made when first used
};

class BlockIndex {
 public:
  BlockIndex();

  // Makes room for so many entries: growing on the way to a known size costs more than the rest.
  void Reserve(int64_t num_blocks);
  // False and no change when the key is there: the first complete writer wins.
  bool Insert(const BlockKey& key, const IndexedBlock& block);
  // Inserts many at once, which is faster; the places of those whose keys were there.
  std::vector<size_t> InsertAll(std::span<const KeyedBlock> blocks);
  std::optional<IndexedBlock> Find(const BlockKey& key) const;
  bool Contains(const BlockKey& key) const { return Find(key).has_value(); }
  // Removes the entry if it still points to the location.
  bool Erase(const BlockKey& key, const BlockLocation& location);
  // Removes every entry that `which` accepts, which runs under the lock of a shard; what was
  // removed.
  std::vector<IndexedBlock> EraseIf(const std::function<bool(const IndexedBlock&)>& which);
  // Points the entry to a copy, if it still points to `from`.
  bool Move(const BlockKey& key, const BlockLocation& from, const BlockLocation& to);
  // Points the entry to another record of the block, with its generation, if it still points to
  // `from`; raises its class to that of the record.
  bool Replace(const BlockKey& key, const BlockLocation& from, const IndexedBlock& by);
  // Counts a use of each key, deepest first; raises its class when `at_least` is a longer one.
  void Touch(std::span<const BlockKey> keys, uint32_t minute, RetentionClass at_least);
  // Restores what an earlier process knew about a use; never makes an entry older.
  void SetTouched(const BlockKey& key, uint32_t minute, uint8_t touches);

  // Blocks of a tenant in a class.
  int64_t CountOf(uint16_t tenant, RetentionClass retention) const {
    return counts_.Of(tenant, retention);
  }

  int64_t size() const;
  // Memory of the entries, with the room between them.
  int64_t resident_bytes() const;

 private:
  // Packed to 24 bytes; segment 0 marks an empty place.
  struct Slot {
    uint64_t key_low = 0;
    uint64_t key_high : 24 = 0;
    uint64_t segment : 24 = 0;
    uint64_t tenant : 16 = 0;
    uint64_t record : 16 = 0;
    uint64_t touched_minute : 24 = 0;
    uint64_t touches : 8 = 0;
    uint64_t replay_gen : 8 = 0;
    uint64_t retention : 2 = 0;
    uint64_t absolute_deadline : 1 = 0;
    uint64_t unused : 5 = 0;
  };

  static constexpr size_t kNumShards = 64;
  struct Shard {
    mutable std::shared_mutex mutex;
    std::vector<Slot> slots;
    size_t count = 0;
  };

  Shard& ShardOf(const BlockKey& key) const;
  static size_t HomeOf(const Shard& shard, uint64_t key_low);
  // Place of the key, or of the empty slot that ends its search.
  static size_t PlaceOf(const Shard& shard, const BlockKey& key);
  // num_slots: more than there are entries.
  static void Resize(Shard* shard, size_t num_slots);
  static void RemoveAt(Shard* shard, size_t place);
  static IndexedBlock BlockOf(const Slot& slot);
  static BlockLocation LocationOf(const Slot& slot) {
    return {static_cast<uint32_t>(slot.segment), static_cast<uint32_t>(slot.record)};
  }
  // Into a shard with room, under its lock; false when the key is there. Not counted yet.
  static bool InsertInto(Shard* shard, const BlockKey& key, const IndexedBlock& block);
  // Locks the shard, makes room for the blocks at these places and asks for the memory of theirs.
  static std::unique_lock<std::shared_mutex> Prepare(Shard* shard,
                                                     std::span<const KeyedBlock> blocks,
                                                     std::span<const uint32_t> places);
  // Makes room for so many more.
  static void MakeRoom(Shard* shard, size_t more);
  void RaiseClass(Slot* slot, RetentionClass at_least);
  void Discount(const Slot& slot);

  TenantCounts counts_;
  std::unique_ptr<std::array<Shard, kNumShards>> shards_;
};

}  // namespace deepinfer
