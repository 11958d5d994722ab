// Which block of the pool belongs to whom: free list, references, pins, the prefix index (key to
// block) and the order in which idle blocks are reclaimed. Bookkeeping only: the bytes of block b
// are wherever the owner of the memory keeps them.
//
// Life of a block (kv_format.md §6):
//   free -> filling -> verified -> attached -> idle -> free
// filling: one owner writes it. verified: complete and immutable, but not in the index because its
// key already was. attached: in the index and referenced. idle: in the index, reclaimable.
//
// Thread rule: one thread, the engine's. Owner: the engine.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kvcache/keys.h"

namespace deepinfer {

enum class BlockState : uint8_t { kFree, kFilling, kVerified, kAttached, kIdle };

struct BlockPoolStats {
  int64_t capacity = 0;  // blocks that can be lent: all but block 0
  int64_t free = 0;
  int64_t idle = 0;  // in the index, unreferenced; the rest has a reference or a pin
  // Totals since the start. Every reference and pin taken is given back when a worker is idle.
  int64_t refs_taken = 0;
  int64_t refs_released = 0;
  int64_t pins_taken = 0;
  int64_t pins_released = 0;
  int64_t published = 0;
  int64_t duplicates = 0;  // published blocks whose key was in the index already
  int64_t reclaimed = 0;   // idle blocks given to a new owner
  int64_t erased = 0;
};

class BlockPool {
 public:
  // Blocks 0 .. num_blocks - 1; block 0 means "none" and is never lent. num_blocks >= 1.
  explicit BlockPool(int32_t num_blocks);

  // Blocks that Allocate could still hand out: free and idle ones.
  int64_t available() const { return stats_.free + stats_.idle; }

  // A filling block with one reference, reclaiming the least recently used idle block when none is
  // free; 0 when every block is in use.
  int32_t Allocate();
  // All or nothing: appends `count` blocks to `blocks`, or false and no change.
  bool Allocate(int64_t count, std::vector<int32_t>* blocks);

  // How many leading keys are in the index with replay_gen <= max_replay_gen.
  int64_t CountHit(std::span<const BlockKey> keys, uint16_t max_replay_gen) const;
  // Takes one reference on each of those blocks and returns them in order; at most keys.size().
  std::vector<int32_t> AcquireHit(std::span<const BlockKey> keys, uint16_t max_replay_gen);
  // The block of a key, or 0. Takes no reference.
  int32_t Find(const BlockKey& key) const;

  // Declares a filling block complete. True: it is in the index now. False: the key was there
  // already; the block stays private to its holders. The first complete writer wins, unless the
  // block has a lower replay_gen than the one in the index, which then is its holders' alone.
  bool Publish(int32_t block, const BlockKey& key, uint16_t replay_gen);

  // One more reference on a block that somebody holds, for a sequence that forks.
  void AddRef(int32_t block);
  // Gives references back, one per block, deepest block of the chain first, so that no parent is
  // reclaimed before its children. blocks is in chain order; zeros are skipped.
  void ReleaseChain(std::span<const int32_t> blocks);

  // A transfer or a store reads or writes the block: it stays until the pin is gone, even when
  // every reference is.
  void Pin(int32_t block);
  void Unpin(int32_t block);

  // Marks the blocks of a prefix as used now, deepest first. Keys not in the index are skipped.
  void Touch(std::span<const BlockKey> keys);
  // Takes the key out of the index. Holders keep the block until they release it. False when the
  // key was not there.
  bool Erase(const BlockKey& key);
  // Takes every unreferenced block out of the index; the number of blocks freed.
  int64_t DropIdle();

  // Whether lists, index, states and totals agree; internal with the first thing that does not.
  // Looks at every block.
  Status Check() const;

  BlockState state(int32_t block) const { return At(block).state; }
  int32_t num_refs(int32_t block) const { return At(block).refs; }
  uint16_t replay_gen(int32_t block) const { return At(block).replay_gen; }
  // Of a verified, attached or idle block.
  const BlockKey& key(int32_t block) const { return At(block).key; }
  const BlockPoolStats& stats() const { return stats_; }

 private:
  struct Block {
    BlockKey key;
    int32_t refs = 0;
    int32_t pins = 0;
    int32_t older = 0;  // neighbours in the list of idle blocks, 0 at the ends
    int32_t newer = 0;
    uint16_t replay_gen = 0;
    BlockState state = BlockState::kFree;
  };

  const Block& At(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  // Moves an indexed block from idle to attached.
  void Attach(int32_t index);
  // The block lost a reference or pin; moves it on when it was the last.
  void Settle(int32_t index);
  void Free(int32_t index);
  void RemoveFromIndex(int32_t index);
  void LinkNewest(int32_t index);
  void Unlink(int32_t index);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> index_;
  int32_t oldest_ = 0;
  int32_t newest_ = 0;
  BlockPoolStats stats_;
};

}  // namespace deepinfer
