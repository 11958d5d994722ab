// Host memory for window state that would be expensive to compute again: snapshots of the encoder
// rings at a block edge, and whole images of parked sequences (kv_format.md §7). Never on disk.
// Byte-bounded; the least recently used go first, and everything goes after its time to live.
//
// Thread rule: one thread, the engine's. Owner: the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/keys.h"

namespace deepinfer {

struct SwaPoolOptions {
  int64_t capacity_bytes = 0;
  int64_t time_to_live_us = int64_t{15} * 60 * 1'000'000;  // since the last use
};

struct SwaPoolStats {
  int64_t snapshot_bytes = 0;
  int64_t park_bytes = 0;
  int64_t num_snapshots = 0;
  int64_t num_park_images = 0;
  int64_t snapshot_hits = 0;
  int64_t snapshot_misses = 0;
  int64_t evicted = 0;  // for room
  int64_t expired = 0;  // after the time to live
  int64_t refused = 0;  // larger than the pool, or the pool is full of fresher images
  int64_t corrupt = 0;  // bytes changed in memory; dropped
};

// Window rows at position edge, which is a block edge.
struct SwaSnapshot {
  BlockKey key;  // of the block that ends at edge
  int64_t edge = 0;
  uint16_t replay_gen = 0;
  std::span<const std::byte> bytes;  // as they were put; valid until the next call
};

class SwaPool {
 public:
  explicit SwaPool(const SwaPoolOptions& options) : options_(options) {}

  // Copies `rings` under the key. layer_bytes divides their size: each part has its own checksum.
  // False when it can never fit. An existing snapshot of the key stays if its replay_gen is not
  // higher.
  bool PutSnapshot(const BlockKey& key, int64_t edge, uint16_t replay_gen,
                   std::span<const std::byte> rings, int64_t layer_bytes, int64_t now_us);
  // The snapshot of the key with replay_gen <= max_replay_gen, checked and marked as used.
  std::optional<SwaSnapshot> GetSnapshot(const BlockKey& key, uint16_t max_replay_gen,
                                         int64_t now_us);
  // The deepest such snapshot at an edge in [lowest_edge, highest_edge] of the sequence with these
  // block keys.
  std::optional<SwaSnapshot> FindSnapshot(std::span<const BlockKey> keys, int32_t block_tokens,
                                          int64_t lowest_edge, int64_t highest_edge,
                                          uint16_t max_replay_gen, int64_t now_us);

  // Keeps the state of a parked sequence. Images push snapshots out, older images only after all
  // snapshots. False when it can never fit.
  bool PutParkImage(const std::string& sequence_id, std::vector<std::byte> image, int64_t now_us);
  // Hands the image over and forgets it; empty when it was dropped.
  std::optional<std::vector<std::byte>> TakeParkImage(const std::string& sequence_id,
                                                      int64_t now_us);

  // Forgets snapshots of the key (erasure).
  void EraseSnapshot(const BlockKey& key);
  // Drops what has outlived its time; cheap, to be called from house-keeping.
  void Expire(int64_t now_us);

  const SwaPoolStats& stats() const { return stats_; }

 private:
  struct Snapshot {
    BlockKey key;
    int64_t edge = 0;
    int64_t used_us = 0;
    uint16_t replay_gen = 0;
    std::vector<std::byte> bytes;
    int64_t layer_bytes = 0;
    std::vector<uint32_t> layer_crc;
  };
  struct ParkImage {
    std::string sequence_id;
    int64_t used_us = 0;
    std::vector<std::byte> bytes;
    uint32_t crc = 0;
  };
  using SnapshotList = std::list<Snapshot>;    // least recently used first
  using ParkImageList = std::list<ParkImage>;  // oldest first

  int64_t used_bytes() const { return stats_.snapshot_bytes + stats_.park_bytes; }
  bool MakeRoom(int64_t size_bytes, bool may_drop_images);
  // The checked snapshot of a key, marked as used; end of the list when there is none.
  SnapshotList::iterator Use(const BlockKey& key, uint16_t max_replay_gen, int64_t now_us);
  void Drop(SnapshotList::iterator it);
  void Drop(ParkImageList::iterator it);

  SwaPoolOptions options_;
  SnapshotList snapshots_;
  ParkImageList images_;
  std::unordered_map<BlockKey, SnapshotList::iterator, BlockKeyHash> snapshot_index_;
  std::unordered_map<std::string, ParkImageList::iterator> image_index_;
  SwaPoolStats stats_;
};

}  // namespace deepinfer
