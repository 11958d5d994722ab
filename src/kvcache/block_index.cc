#include "kvcache/block_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr uint8_t kClassMask = 3;
constexpr uint8_t kAbsoluteFlag = 4;
// Fuller tables save memory, emptier ones time; searches stay short up to here.
constexpr size_t kMaxFullPercent = 88;
constexpr size_t kGrowPercent = 125;
constexpr size_t kFirstSlots = 16;

uint64_t KeyWord(const BlockKey& key, size_t word) {
  uint64_t value;
  std::memcpy(&value, key.bytes.data() + word * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

BlockIndex::BlockIndex() : shards_(std::make_unique<std::array<Shard, kNumShards>>()) {
  static_assert(sizeof(Slot) == 32);
  for (Shard& shard : *shards_) shard.slots.resize(kFirstSlots);
}

BlockIndex::Shard& BlockIndex::ShardOf(const BlockKey& key) const {
  return (*shards_)[KeyWord(key, 0) % kNumShards];
}

// Keys are digests: their high word, scaled to the table, is already uniform.
size_t BlockIndex::HomeOf(const Shard& shard, uint64_t key_high) {
  return static_cast<size_t>((static_cast<unsigned __int128>(key_high) * shard.slots.size()) >> 64);
}

size_t BlockIndex::PlaceOf(const Shard& shard, const BlockKey& key) {
  const uint64_t low = KeyWord(key, 0);
  const uint64_t high = KeyWord(key, 1);
  size_t place = HomeOf(shard, high);
  while (shard.slots[place].segment != 0 &&
         (shard.slots[place].key_low != low || shard.slots[place].key_high != high)) {
    place = place + 1 == shard.slots.size() ? 0 : place + 1;
  }
  return place;
}

void BlockIndex::Resize(Shard* shard, size_t num_slots) {
  std::vector<Slot> old(num_slots);
  old.swap(shard->slots);
  for (const Slot& slot : old) {
    if (slot.segment == 0) continue;
    size_t place = HomeOf(*shard, slot.key_high);
    while (shard->slots[place].segment != 0) {
      place = place + 1 == shard->slots.size() ? 0 : place + 1;
    }
    shard->slots[place] = slot;
  }
}

// Moves later entries of the run back, so that no search ends at the gap too early.
void BlockIndex::RemoveAt(Shard* shard, size_t place) {
  std::vector<Slot>& slots = shard->slots;
  const size_t size = slots.size();
  size_t gap = place;
  for (size_t next = (gap + 1) % size; slots[next].segment != 0; next = (next + 1) % size) {
    const size_t home = HomeOf(*shard, slots[next].key_high);
    // The entry may move to the gap unless its home lies behind the gap.
    if ((next + size - home) % size >= (next + size - gap) % size) {
      slots[gap] = slots[next];
      gap = next;
    }
  }
  slots[gap] = Slot();
  --shard->count;
}

void BlockIndex::Reserve(int64_t num_blocks) {
  const size_t in_shard = static_cast<size_t>(num_blocks) / kNumShards;
  // Keys do not fall into the shards evenly: six deviations cover them.
  const auto spread = static_cast<size_t>(6 * std::sqrt(static_cast<double>(in_shard)));
  const size_t num_slots = (in_shard + spread) * 100 / kMaxFullPercent + kFirstSlots;
  for (Shard& shard : *shards_) {
    const std::unique_lock lock(shard.mutex);
    if (num_slots > shard.slots.size()) Resize(&shard, num_slots);
  }
}

bool BlockIndex::Insert(const BlockKey& key, const IndexedBlock& block) {
  DI_CHECK(block.location.segment != 0);
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  size_t place = PlaceOf(shard, key);
  if (shard.slots[place].segment != 0) return false;
  if ((shard.count + 1) * 100 > shard.slots.size() * kMaxFullPercent) {
    Resize(&shard, shard.slots.size() * kGrowPercent / 100);
    place = PlaceOf(shard, key);
  }
  Slot& slot = shard.slots[place];
  slot.key_low = KeyWord(key, 0);
  slot.key_high = KeyWord(key, 1);
  slot.segment = block.location.segment;
  slot.record = block.location.record;
  slot.retention_and_flags = static_cast<uint8_t>(static_cast<uint8_t>(block.retention) |
                                                  (block.absolute_deadline ? kAbsoluteFlag : 0));
  slot.touches = block.touches;
  slot.tenant = block.tenant;
  slot.touched_minute = block.touched_minute & 0xFFFFFF;
  slot.replay_gen = block.replay_gen;
  ++shard.count;
  return true;
}

std::optional<IndexedBlock> BlockIndex::Find(const BlockKey& key) const {
  const Shard& shard = ShardOf(key);
  const std::shared_lock lock(shard.mutex);
  const Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0) return std::nullopt;
  return BlockOf(slot);
}

IndexedBlock BlockIndex::BlockOf(const Slot& slot) {
  IndexedBlock block;
  block.location = {slot.segment, slot.record};
  block.retention = static_cast<RetentionClass>(slot.retention_and_flags & kClassMask);
  block.absolute_deadline = (slot.retention_and_flags & kAbsoluteFlag) != 0;
  block.touches = slot.touches;
  block.replay_gen = static_cast<uint8_t>(slot.replay_gen);
  block.tenant = slot.tenant;
  block.touched_minute = slot.touched_minute;
  return block;
}

bool BlockIndex::Erase(const BlockKey& key, const BlockLocation& location) {
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  const size_t place = PlaceOf(shard, key);
  const Slot& slot = shard.slots[place];
  if (slot.segment == 0 || BlockLocation{slot.segment, slot.record} != location) return false;
  RemoveAt(&shard, place);
  return true;
}

std::vector<IndexedBlock> BlockIndex::EraseIf(
    const std::function<bool(const IndexedBlock&)>& which) {
  std::vector<IndexedBlock> erased;
  for (Shard& shard : *shards_) {
    const std::unique_lock lock(shard.mutex);
    for (size_t place = 0; place < shard.slots.size();) {
      const Slot& slot = shard.slots[place];
      if (slot.segment == 0 || !which(BlockOf(slot))) {
        ++place;
        continue;
      }
      erased.push_back(BlockOf(slot));
      RemoveAt(&shard, place);  // may move a later entry here: the place is looked at again
    }
  }
  return erased;
}

void BlockIndex::RaiseClass(Slot* slot, RetentionClass at_least) {
  const auto flags = static_cast<uint8_t>(slot->retention_and_flags & ~kClassMask);
  const auto retention =
      std::max<uint8_t>(slot->retention_and_flags & kClassMask, static_cast<uint8_t>(at_least));
  slot->retention_and_flags = static_cast<uint8_t>(flags | retention);
}

bool BlockIndex::Move(const BlockKey& key, const BlockLocation& from, const BlockLocation& to) {
  DI_CHECK(to.segment != 0);
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0 || BlockLocation{slot.segment, slot.record} != from) return false;
  slot.segment = to.segment;
  slot.record = to.record;
  return true;
}

bool BlockIndex::Replace(const BlockKey& key, const BlockLocation& from, const IndexedBlock& by) {
  DI_CHECK(by.location.segment != 0);
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0 || BlockLocation{slot.segment, slot.record} != from) return false;
  slot.segment = by.location.segment;
  slot.record = by.location.record;
  slot.replay_gen = by.replay_gen;
  RaiseClass(&slot, by.retention);
  return true;
}

void BlockIndex::Touch(std::span<const BlockKey> keys, uint32_t minute, RetentionClass at_least) {
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    Shard& shard = ShardOf(*key);
    const std::unique_lock lock(shard.mutex);
    Slot& slot = shard.slots[PlaceOf(shard, *key)];
    if (slot.segment == 0) continue;
    if (slot.touches < std::numeric_limits<uint8_t>::max()) ++slot.touches;
    slot.touched_minute = std::max<uint32_t>(slot.touched_minute, minute) & 0xFFFFFF;
    RaiseClass(&slot, at_least);
  }
}

void BlockIndex::SetTouched(const BlockKey& key, uint32_t minute, uint8_t touches) {
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0) return;
  slot.touches = std::max(slot.touches, touches);
  slot.touched_minute = std::max<uint32_t>(slot.touched_minute, minute) & 0xFFFFFF;
}

int64_t BlockIndex::size() const {
  int64_t count = 0;
  for (const Shard& shard : *shards_) {
    const std::shared_lock lock(shard.mutex);
    count += static_cast<int64_t>(shard.count);
  }
  return count;
}

int64_t BlockIndex::resident_bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : *shards_) {
    const std::shared_lock lock(shard.mutex);
    bytes += static_cast<int64_t>(shard.slots.size() * sizeof(Slot));
  }
  return bytes;
}

}  // namespace deepinfer
