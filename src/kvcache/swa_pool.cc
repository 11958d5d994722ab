#include "kvcache/swa_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"

namespace deepinfer {
namespace {

std::vector<uint32_t> LayerChecksums(std::span<const std::byte> bytes, int64_t layer_bytes) {
  std::vector<uint32_t> checksums;
  const auto step = static_cast<size_t>(layer_bytes);
  for (size_t begin = 0; begin < bytes.size(); begin += step) {
    checksums.push_back(Crc32c(bytes.subspan(begin, step)));
  }
  return checksums;
}

int64_t SizeOf(const std::vector<std::byte>& bytes) { return static_cast<int64_t>(bytes.size()); }

}  // namespace

bool SwaPool::PutSnapshot(const BlockKey& key, int64_t edge, uint16_t replay_gen,
                          std::span<const std::byte> rings, int64_t layer_bytes, int64_t now_us) {
  DI_CHECK(layer_bytes > 0 && static_cast<int64_t>(rings.size()) % layer_bytes == 0);
  if (const auto it = snapshot_index_.find(key); it != snapshot_index_.end()) {
    if (it->second->replay_gen <= replay_gen) {
      it->second->used_us = now_us;
      snapshots_.splice(snapshots_.end(), snapshots_, it->second);
      return true;
    }
    Drop(it->second);
  }
  if (!MakeRoom(static_cast<int64_t>(rings.size()), false)) return false;
  snapshots_.push_back({key,
                        edge,
                        now_us,
                        replay_gen,
                        {rings.begin(), rings.end()},
                        layer_bytes,
                        LayerChecksums(rings, layer_bytes)});
  snapshot_index_[key] = std::prev(snapshots_.end());
  stats_.snapshot_bytes += static_cast<int64_t>(rings.size());
  ++stats_.num_snapshots;
  return true;
}

SwaPool::SnapshotList::iterator SwaPool::Use(const BlockKey& key, uint16_t max_replay_gen,
                                             int64_t now_us) {
  const auto found = snapshot_index_.find(key);
  if (found == snapshot_index_.end() || found->second->replay_gen > max_replay_gen) {
    return snapshots_.end();
  }
  const auto it = found->second;
  if (LayerChecksums(it->bytes, it->layer_bytes) != it->layer_crc) {
    Drop(it);
    ++stats_.corrupt;
    return snapshots_.end();
  }
  it->used_us = now_us;
  snapshots_.splice(snapshots_.end(), snapshots_, it);
  return it;
}

std::optional<SwaSnapshot> SwaPool::GetSnapshot(const BlockKey& key, uint16_t max_replay_gen,
                                                int64_t now_us) {
  Expire(now_us);
  const auto it = Use(key, max_replay_gen, now_us);
  if (it == snapshots_.end()) {
    ++stats_.snapshot_misses;
    return std::nullopt;
  }
  ++stats_.snapshot_hits;
  return SwaSnapshot{it->key, it->edge, it->replay_gen, it->bytes};
}

std::optional<SwaSnapshot> SwaPool::FindSnapshot(std::span<const BlockKey> keys,
                                                 int32_t block_tokens, int64_t lowest_edge,
                                                 int64_t highest_edge, uint16_t max_replay_gen,
                                                 int64_t now_us) {
  DI_CHECK(block_tokens > 0);
  Expire(now_us);
  const auto num_keys = static_cast<int64_t>(keys.size());
  for (int64_t block = std::min(highest_edge / block_tokens, num_keys); block > 0; --block) {
    if (block * block_tokens < lowest_edge) break;
    const auto it = Use(keys[static_cast<size_t>(block - 1)], max_replay_gen, now_us);
    if (it == snapshots_.end()) continue;
    ++stats_.snapshot_hits;
    return SwaSnapshot{it->key, it->edge, it->replay_gen, it->bytes};
  }
  ++stats_.snapshot_misses;
  return std::nullopt;
}

bool SwaPool::PutParkImage(const std::string& sequence_id, std::vector<std::byte> image,
                           int64_t now_us) {
  if (const auto it = image_index_.find(sequence_id); it != image_index_.end()) Drop(it->second);
  if (!MakeRoom(SizeOf(image), true)) return false;
  const uint32_t crc = Crc32c(image);
  stats_.park_bytes += SizeOf(image);
  ++stats_.num_park_images;
  images_.push_back({sequence_id, now_us, std::move(image), crc});
  image_index_[sequence_id] = std::prev(images_.end());
  return true;
}

std::optional<std::vector<std::byte>> SwaPool::TakeParkImage(const std::string& sequence_id,
                                                             int64_t now_us) {
  Expire(now_us);
  const auto it = image_index_.find(sequence_id);
  if (it == image_index_.end()) return std::nullopt;
  const bool intact = Crc32c(it->second->bytes) == it->second->crc;
  if (!intact) ++stats_.corrupt;
  stats_.park_bytes -= SizeOf(it->second->bytes);
  std::vector<std::byte> image = std::exchange(it->second->bytes, {});
  Drop(it->second);
  if (!intact) return std::nullopt;
  return image;
}

void SwaPool::EraseSnapshot(const BlockKey& key) {
  if (const auto it = snapshot_index_.find(key); it != snapshot_index_.end()) Drop(it->second);
}

void SwaPool::Expire(int64_t now_us) {
  const auto expired = [&](int64_t used_us) {
    return now_us - used_us >= options_.time_to_live_us;
  };
  while (!snapshots_.empty() && expired(snapshots_.front().used_us)) {
    Drop(snapshots_.begin());
    ++stats_.expired;
  }
  while (!images_.empty() && expired(images_.front().used_us)) {
    Drop(images_.begin());
    ++stats_.expired;
  }
}

bool SwaPool::MakeRoom(int64_t size_bytes, bool may_drop_images) {
  const int64_t kept_bytes = may_drop_images ? 0 : stats_.park_bytes;
  if (kept_bytes + size_bytes > options_.capacity_bytes) {
    ++stats_.refused;
    return false;
  }
  while (used_bytes() + size_bytes > options_.capacity_bytes) {
    if (!snapshots_.empty()) {
      Drop(snapshots_.begin());
    } else {
      Drop(images_.begin());
    }
    ++stats_.evicted;
  }
  return true;
}

void SwaPool::Drop(SnapshotList::iterator it) {
  stats_.snapshot_bytes -= SizeOf(it->bytes);
  --stats_.num_snapshots;
  snapshot_index_.erase(it->key);
  snapshots_.erase(it);
}

void SwaPool::Drop(ParkImageList::iterator it) {
  stats_.park_bytes -= SizeOf(it->bytes);
  --stats_.num_park_images;
  image_index_.erase(it->sequence_id);
  images_.erase(it);
}

}  // namespace deepinfer
