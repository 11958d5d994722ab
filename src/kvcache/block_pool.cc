#include "kvcache/block_pool.h"

#include <string>

#include "base/check.h"

namespace deepinfer {

BlockPool::BlockPool(int32_t num_blocks) {
  DI_CHECK(num_blocks >= 1);
  blocks_.resize(static_cast<size_t>(num_blocks));
  free_.reserve(blocks_.size());
  for (int32_t block = num_blocks - 1; block > 0; --block) free_.push_back(block);
  stats_.capacity = stats_.free = num_blocks - 1;
}

int32_t BlockPool::Allocate() {
  if (free_.empty()) {
    if (oldest_ == 0) return 0;
    const int32_t reclaimed = oldest_;
    RemoveFromIndex(reclaimed);
    Free(reclaimed);
    ++stats_.reclaimed;
  }
  const int32_t index = free_.back();
  free_.pop_back();
  --stats_.free;
  Block& block = At(index);
  block.state = BlockState::kFilling;
  block.refs = 1;
  ++stats_.refs_taken;
  return index;
}

bool BlockPool::Allocate(int64_t count, std::vector<int32_t>* blocks) {
  if (count > available()) return false;
  for (int64_t i = 0; i < count; ++i) blocks->push_back(Allocate());
  return true;
}

int32_t BlockPool::Find(const BlockKey& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? 0 : it->second;
}

int64_t BlockPool::CountHit(std::span<const BlockKey> keys, uint16_t max_replay_gen) const {
  int64_t count = 0;
  for (const BlockKey& key : keys) {
    const int32_t block = Find(key);
    if (block == 0 || At(block).replay_gen > max_replay_gen) break;
    ++count;
  }
  return count;
}

std::vector<int32_t> BlockPool::AcquireHit(std::span<const BlockKey> keys,
                                           uint16_t max_replay_gen) {
  std::vector<int32_t> hit;
  for (const BlockKey& key : keys) {
    const int32_t index = Find(key);
    if (index == 0 || At(index).replay_gen > max_replay_gen) break;
    Attach(index);
    ++At(index).refs;
    ++stats_.refs_taken;
    hit.push_back(index);
  }
  return hit;
}

bool BlockPool::Publish(int32_t index, const BlockKey& key, uint16_t replay_gen) {
  Block& block = At(index);
  DI_CHECK(block.state == BlockState::kFilling);
  block.key = key;
  block.replay_gen = replay_gen;
  block.state = BlockState::kVerified;
  ++stats_.published;
  if (const int32_t other = Find(key); other != 0) {
    ++stats_.duplicates;
    if (At(other).replay_gen <= replay_gen) return false;
    Erase(key);
  }
  index_.emplace(key, index);
  block.state = BlockState::kAttached;
  return true;
}

void BlockPool::AddRef(int32_t index) {
  Block& block = At(index);
  DI_CHECK(block.refs > 0);
  ++block.refs;
  ++stats_.refs_taken;
}

void BlockPool::ReleaseChain(std::span<const int32_t> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    const int32_t index = *it;
    if (index == 0) continue;
    Block& block = At(index);
    DI_CHECK(block.refs > 0);
    // The indexed twin of a private copy was as good as used: its children must not outlive it.
    if (block.state == BlockState::kVerified) Touch({&block.key, 1});
    --block.refs;
    ++stats_.refs_released;
    Settle(index);
  }
}

void BlockPool::Pin(int32_t index) {
  Block& block = At(index);
  DI_CHECK(block.state != BlockState::kFree);
  Attach(index);
  ++block.pins;
  ++stats_.pins_taken;
}

void BlockPool::Unpin(int32_t index) {
  Block& block = At(index);
  DI_CHECK(block.pins > 0);
  --block.pins;
  ++stats_.pins_released;
  Settle(index);
}

void BlockPool::Touch(std::span<const BlockKey> keys) {
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const int32_t index = Find(*key);
    if (index == 0 || At(index).state != BlockState::kIdle) continue;
    Unlink(index);
    LinkNewest(index);
  }
}

bool BlockPool::Erase(const BlockKey& key) {
  const int32_t index = Find(key);
  if (index == 0) return false;
  ++stats_.erased;
  const bool idle = At(index).state == BlockState::kIdle;
  RemoveFromIndex(index);
  if (idle) Free(index);
  return true;
}

int64_t BlockPool::DropIdle() {
  const int64_t dropped = stats_.idle;
  while (oldest_ != 0) Erase(BlockKey(At(oldest_).key));
  return dropped;
}

namespace {

bool MayHave(BlockState state, int32_t holders) {
  const bool is_held = state != BlockState::kFree && state != BlockState::kIdle;
  return is_held == (holders > 0);
}

}  // namespace

Status BlockPool::Check() const {
  int64_t free = 0, idle = 0, refs = 0, pins = 0, indexed = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const auto breach = [i](const char* what) {
      return Internal("block " + std::to_string(i) + ": " + what);
    };
    if (block.refs < 0 || block.pins < 0) return breach("it was given back too often");
    if (!MayHave(block.state, block.refs + block.pins)) return breach("its state is not its use");
    const bool in_index = block.state == BlockState::kAttached || block.state == BlockState::kIdle;
    if (in_index && Find(block.key) != static_cast<int32_t>(i)) return breach("not in the index");
    refs += block.refs;
    pins += block.pins;
    indexed += in_index;
    idle += block.state == BlockState::kIdle;
    free += block.state == BlockState::kFree;
  }
  // Block 0 is never lent.
  if (blocks_[0].state != BlockState::kFree) return Internal("block 0 is in use");
  if (free - 1 != stats_.free || stats_.free != static_cast<int64_t>(free_.size())) {
    return Internal("the free list is not the free blocks");
  }
  if (idle != stats_.idle) return Internal("the count of idle blocks is wrong");
  if (indexed != static_cast<int64_t>(index_.size())) return Internal("the index names others");
  if (refs != stats_.refs_taken - stats_.refs_released) return Internal("references got lost");
  if (pins != stats_.pins_taken - stats_.pins_released) return Internal("pins got lost");
  return OkStatus();
}

void BlockPool::Attach(int32_t index) {
  if (At(index).state != BlockState::kIdle) return;
  Unlink(index);
  At(index).state = BlockState::kAttached;
}

void BlockPool::Settle(int32_t index) {
  Block& block = At(index);
  if (block.refs > 0 || block.pins > 0) return;
  if (block.state == BlockState::kAttached) {
    block.state = BlockState::kIdle;
    LinkNewest(index);
  } else {
    Free(index);
  }
}

void BlockPool::Free(int32_t index) {
  At(index) = Block();
  free_.push_back(index);
  ++stats_.free;
}

void BlockPool::RemoveFromIndex(int32_t index) {
  Block& block = At(index);
  index_.erase(block.key);
  if (block.state == BlockState::kIdle) Unlink(index);
  block.state = BlockState::kVerified;
}

void BlockPool::LinkNewest(int32_t index) {
  Block& block = At(index);
  block.older = newest_;
  block.newer = 0;
  (newest_ == 0 ? oldest_ : At(newest_).newer) = index;
  newest_ = index;
  ++stats_.idle;
}

void BlockPool::Unlink(int32_t index) {
  Block& block = At(index);
  (block.older == 0 ? oldest_ : At(block.older).newer) = block.newer;
  (block.newer == 0 ? newest_ : At(block.newer).older) = block.older;
  block.older = block.newer = 0;
  --stats_.idle;
}

}  // namespace deepinfer
