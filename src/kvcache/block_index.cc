#include "kvcache/block_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr uint32_t kMostSegments = 0xFFFFFF;
constexpr uint32_t kMostRecords = 0xFFFF;
constexpr uint64_t kKeyHighMask = 0xFFFFFF;
// Fuller tables save memory, emptier ones time; searches stay short up to here.
constexpr size_t kMaxFullPercent = 88;
// A table that has just grown is 76 % full and takes 31.4 bytes an entry.
constexpr size_t kGrowPercent = 115;
constexpr size_t kFirstSlots = 16;
constexpr size_t kCacheLineBytes = 64;

uint64_t KeyWord(const BlockKey& key, size_t word) {
  uint64_t value;
  std::memcpy(&value, key.bytes.data() + word * sizeof(value), sizeof(value));
  return value;
}

// Counts blocks, neighbours of one tenant and class at once.
class CountRun {
 public:
  explicit CountRun(TenantCounts* counts) : counts_(counts) {}
  ~CountRun() { counts_->Add(tenant_, retention_, blocks_); }

  void Add(uint16_t tenant, RetentionClass retention) {
    if (tenant != tenant_ || retention != retention_) {
      counts_->Add(tenant_, retention_, blocks_);
      tenant_ = tenant;
      retention_ = retention;
      blocks_ = 0;
    }
    ++blocks_;
  }

 private:
  TenantCounts* counts_;
  uint16_t tenant_ = 0;
  RetentionClass retention_ = RetentionClass::kBatch;
  int64_t blocks_ = 0;
};

}  // namespace

TenantCounts::~TenantCounts() {
  for (const std::atomic<Chunk*>& chunk : chunks_) delete chunk.load();
}

void TenantCounts::Add(uint16_t tenant, RetentionClass retention, int64_t blocks) {
  std::atomic<Chunk*>& place = chunks_[tenant / kChunkTenants];
  Chunk* chunk = place.load(std::memory_order_acquire);
  if (chunk == nullptr) {
    auto made = std::make_unique<Chunk>();
    // Another thread may have been faster.
    if (place.compare_exchange_strong(chunk, made.get())) chunk = made.release();
  }
  (*chunk)[tenant % kChunkTenants][static_cast<size_t>(retention)].fetch_add(
      blocks, std::memory_order_relaxed);
}

int64_t TenantCounts::Of(uint16_t tenant, RetentionClass retention) const {
  const Chunk* chunk = chunks_[tenant / kChunkTenants].load(std::memory_order_acquire);
  if (chunk == nullptr) return 0;
  return (*chunk)[tenant % kChunkTenants][static_cast<size_t>(retention)].load(
      std::memory_order_relaxed);
}

BlockIndex::BlockIndex() : shards_(std::make_unique<std::array<Shard, kNumShards>>()) {
  static_assert(sizeof(Slot) == 24);
  for (Shard& shard : *shards_) shard.slots.resize(kFirstSlots);
}

BlockIndex::Shard& BlockIndex::ShardOf(const BlockKey& key) const {
  return (*shards_)[KeyWord(key, 0) % kNumShards];
}

// Keys are digests: their low word, scaled to the table, is already uniform. Its high bits decide,
// those that chose the shard do not.
size_t BlockIndex::HomeOf(const Shard& shard, uint64_t key_low) {
  return static_cast<size_t>((static_cast<unsigned __int128>(key_low) * shard.slots.size()) >> 64);
}

size_t BlockIndex::PlaceOf(const Shard& shard, const BlockKey& key) {
  const uint64_t low = KeyWord(key, 0);
  const uint64_t high = KeyWord(key, 1) & kKeyHighMask;
  size_t place = HomeOf(shard, low);
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
    size_t place = HomeOf(*shard, slot.key_low);
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
    const size_t home = HomeOf(*shard, slots[next].key_low);
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

void BlockIndex::MakeRoom(Shard* shard, size_t more) {
  const size_t needed = shard->count + more;
  if (needed * 100 <= shard->slots.size() * kMaxFullPercent) return;
  Resize(shard,
         std::max(shard->slots.size() * kGrowPercent / 100, needed * 100 / kMaxFullPercent + 1));
}

bool BlockIndex::InsertInto(Shard* shard, const BlockKey& key, const IndexedBlock& block) {
  DI_CHECK(block.location.segment != 0 && block.location.segment <= kMostSegments);
  DI_CHECK(block.location.record <= kMostRecords);
  Slot& slot = shard->slots[PlaceOf(*shard, key)];
  if (slot.segment != 0) return false;
  slot.key_low = KeyWord(key, 0);
  slot.key_high = KeyWord(key, 1) & kKeyHighMask;
  slot.segment = block.location.segment & kMostSegments;
  slot.record = block.location.record & kMostRecords;
  slot.retention = static_cast<uint8_t>(block.retention) & 3;
  slot.absolute_deadline = block.absolute_deadline ? 1 : 0;
  slot.touches = block.touches;
  slot.tenant = block.tenant;
  slot.touched_minute = block.touched_minute & 0xFFFFFF;
  slot.replay_gen = block.replay_gen;
  ++shard->count;
  return true;
}

bool BlockIndex::Insert(const BlockKey& key, const IndexedBlock& block) {
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  MakeRoom(&shard, 1);
  if (!InsertInto(&shard, key, block)) return false;
  counts_.Add(block.tenant, block.retention, 1);
  return true;
}

std::unique_lock<std::shared_mutex> BlockIndex::Prepare(Shard* shard,
                                                        std::span<const KeyedBlock> blocks,
                                                        std::span<const uint32_t> places) {
  std::unique_lock lock(shard->mutex);
  MakeRoom(shard, places.size());
  for (const uint32_t place : places) {
    const Slot* home = &shard->slots[HomeOf(*shard, KeyWord(blocks[place].key, 0))];
    __builtin_prefetch(home, 1);
    // A search goes on for a few slots.
    __builtin_prefetch(reinterpret_cast<const std::byte*>(home) + kCacheLineBytes, 1);
  }
  return lock;
}

// By shard, each locked once, and the memory of its places asked for while the shard before it is
// filled: an index is far larger than any cache. Nothing else holds two locks, and these are taken
// in order.
std::vector<size_t> BlockIndex::InsertAll(std::span<const KeyedBlock> blocks) {
  const auto shard_of = [](const KeyedBlock& b) { return KeyWord(b.key, 0) % kNumShards; };
  std::array<size_t, kNumShards + 1> begins{};
  for (const KeyedBlock& b : blocks) ++begins[shard_of(b) + 1];
  for (size_t i = 0; i < kNumShards; ++i) begins[i + 1] += begins[i];
  std::vector<uint32_t> order(blocks.size());
  auto next = begins;
  for (size_t i = 0; i < blocks.size(); ++i) {
    order[next[shard_of(blocks[i])]++] = static_cast<uint32_t>(i);
  }
  const auto places_of = [&](size_t shard) {
    return std::span<const uint32_t>(order).subspan(begins[shard],
                                                    begins[shard + 1] - begins[shard]);
  };

  std::vector<size_t> refused;
  CountRun run(&counts_);
  auto prepared = Prepare(&(*shards_)[0], blocks, places_of(0));
  for (size_t i = 0; i < kNumShards; ++i) {
    const auto lock = std::move(prepared);
    if (i + 1 < kNumShards) prepared = Prepare(&(*shards_)[i + 1], blocks, places_of(i + 1));
    for (const uint32_t at : places_of(i)) {
      const IndexedBlock& block = blocks[at].block;
      if (InsertInto(&(*shards_)[i], blocks[at].key, block)) {
        run.Add(block.tenant, block.retention);
      } else {
        refused.push_back(at);
      }
    }
  }
  return refused;
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
  block.location = LocationOf(slot);
  block.retention = static_cast<RetentionClass>(slot.retention);
  block.absolute_deadline = slot.absolute_deadline != 0;
  block.touches = slot.touches;
  block.replay_gen = slot.replay_gen;
  block.tenant = slot.tenant;
  block.touched_minute = slot.touched_minute;
  return block;
}

void BlockIndex::Discount(const Slot& slot) {
  counts_.Add(slot.tenant, static_cast<RetentionClass>(slot.retention), -1);
}

bool BlockIndex::Erase(const BlockKey& key, const BlockLocation& location) {
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  const size_t place = PlaceOf(shard, key);
  const Slot& slot = shard.slots[place];
  if (slot.segment == 0 || LocationOf(slot) != location) return false;
  Discount(slot);
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
      Discount(slot);
      RemoveAt(&shard, place);  // may move a later entry here: the place is looked at again
    }
  }
  return erased;
}

void BlockIndex::RaiseClass(Slot* slot, RetentionClass at_least) {
  if (static_cast<uint8_t>(at_least) <= slot->retention) return;
  Discount(*slot);
  slot->retention = static_cast<uint8_t>(at_least) & 3;
  counts_.Add(slot->tenant, at_least, 1);
}

bool BlockIndex::Move(const BlockKey& key, const BlockLocation& from, const BlockLocation& to) {
  DI_CHECK(to.segment != 0);
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0 || LocationOf(slot) != from) return false;
  slot.segment = to.segment & kMostSegments;
  slot.record = to.record & kMostRecords;
  return true;
}

bool BlockIndex::Replace(const BlockKey& key, const BlockLocation& from, const IndexedBlock& by) {
  DI_CHECK(by.location.segment != 0);
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0 || LocationOf(slot) != from) return false;
  slot.segment = by.location.segment & kMostSegments;
  slot.record = by.location.record & kMostRecords;
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
    if (slot.touches < std::numeric_limits<uint8_t>::max())
      slot.touches = (slot.touches + 1) & 0xFF;
    slot.touched_minute = std::max<uint32_t>(slot.touched_minute, minute) & 0xFFFFFF;
    RaiseClass(&slot, at_least);
  }
}

void BlockIndex::SetTouched(const BlockKey& key, uint32_t minute, uint8_t touches) {
  Shard& shard = ShardOf(key);
  const std::unique_lock lock(shard.mutex);
  Slot& slot = shard.slots[PlaceOf(shard, key)];
  if (slot.segment == 0) return;
  slot.touches = std::max<uint8_t>(slot.touches, touches);
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
