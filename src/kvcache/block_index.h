// Where each stored block lies: key to segment and record, 32 bytes an entry, for lookups without a
// system call (kv_format.md §14). The first 16 bytes of a key find the entry; the full key is
// checked against the record on every read.
//
// Thread rule: any thread; sharded reader-writer locks. Owner: the store.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
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

class BlockIndex {
 public:
  BlockIndex();

  // Makes room for so many entries: growing on the way to a known size costs more than the rest.
  void Reserve(int64_t num_blocks);
  // False and no change when the key is there: the first complete writer wins.
  bool Insert(const BlockKey& key, const IndexedBlock& block);
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

  int64_t size() const;
  // Memory of the entries, with the room between them.
  int64_t resident_bytes() const;

 private:
  // Packed to 32 bytes; segment 0 marks an empty place.
  struct Slot {
    uint64_t key_low = 0;
    uint64_t key_high = 0;
    uint32_t segment = 0;
    uint32_t record = 0;
    uint8_t retention_and_flags = 0;
    uint8_t touches = 0;
    uint16_t tenant = 0;
    uint32_t touched_minute : 24 = 0;
    uint32_t replay_gen : 8 = 0;
  };

  static constexpr size_t kNumShards = 64;
  struct Shard {
    mutable std::shared_mutex mutex;
    std::vector<Slot> slots;
    size_t count = 0;
  };

  Shard& ShardOf(const BlockKey& key) const;
  static size_t HomeOf(const Shard& shard, uint64_t key_high);
  // Place of the key, or of the empty slot that ends its search.
  static size_t PlaceOf(const Shard& shard, const BlockKey& key);
  // num_slots: more than there are entries.
  static void Resize(Shard* shard, size_t num_slots);
  static void RemoveAt(Shard* shard, size_t place);
  static IndexedBlock BlockOf(const Slot& slot);
  static void RaiseClass(Slot* slot, RetentionClass at_least);
  std::unique_ptr<std::array<Shard, kNumShards>> shards_;
};

}  // namespace deepinfer
