// Random operations on the pool beside a model that searches lists instead of keeping links.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kvcache/block_pool.h"

namespace deepinfer {
namespace {

BlockKey Key(uint8_t chain, uint8_t depth) {
  BlockKey key;
  key.bytes[0] = chain;
  key.bytes[9] = depth;
  return key;
}

struct ModelBlock {
  int refs = 0;
  int pins = 0;
  std::optional<BlockKey> key;
  uint16_t gen = 0;
  bool indexed = false;
};

// What the pool promises, by brute force. Blocks have the numbers that the pool gave them.
class Model {
 public:
  explicit Model(int64_t capacity) : capacity_(capacity) {}

  int64_t num_free() const { return capacity_ - static_cast<int64_t>(blocks_.size()); }
  const std::vector<int32_t>& idle() const { return idle_; }
  const std::map<int32_t, ModelBlock>& blocks() const { return blocks_; }

  int32_t Find(const BlockKey& key) const {
    for (const auto& [index, block] : blocks_) {
      if (block.indexed && block.key == key) return index;
    }
    return 0;
  }
  void Allocated(int32_t index) {
    if (num_free() == 0) {
      RC_ASSERT(!idle_.empty());
      blocks_.erase(idle_.front());
      idle_.erase(idle_.begin());
    }
    RC_ASSERT(!blocks_.contains(index));
    blocks_[index].refs = 1;
  }
  bool Publish(int32_t index, const BlockKey& key, uint16_t gen) {
    const int32_t other = Find(key);
    const bool is_new = other == 0 || blocks_[other].gen > gen;
    if (other != 0 && is_new) Erase(key);
    blocks_[index].key = key;
    blocks_[index].gen = gen;
    blocks_[index].indexed = is_new;
    return is_new;
  }
  void Acquire(int32_t index) {
    std::erase(idle_, index);
    ++blocks_[index].refs;
  }
  void Pin(int32_t index) {
    std::erase(idle_, index);
    ++blocks_[index].pins;
  }
  void Release(const std::vector<int32_t>& chain) {
    for (size_t i = chain.size(); i-- > 0;) {
      ModelBlock& block = blocks_[chain[i]];
      if (block.key && !block.indexed) Touch(*block.key);
      --block.refs;
      Settle(chain[i]);
    }
  }
  void Unpin(int32_t index) {
    --blocks_[index].pins;
    Settle(index);
  }
  void Touch(const BlockKey& key) {
    const auto it = std::ranges::find(idle_, Find(key));
    if (it != idle_.end()) std::rotate(it, it + 1, idle_.end());
  }
  bool Erase(const BlockKey& key) {
    const int32_t index = Find(key);
    if (index == 0) return false;
    blocks_[index].indexed = false;
    if (std::erase(idle_, index) > 0) blocks_.erase(index);
    return true;
  }

 private:
  void Settle(int32_t index) {
    const ModelBlock& block = blocks_[index];
    if (block.refs > 0 || block.pins > 0) return;
    if (block.indexed) {
      idle_.push_back(index);
    } else {
      blocks_.erase(index);
    }
  }

  int64_t capacity_;
  std::map<int32_t, ModelBlock> blocks_;
  std::vector<int32_t> idle_;  // least recently used first
};

void ExpectEqual(const BlockPool& pool, const Model& model, int64_t capacity) {
  RC_ASSERT(pool.stats().free == model.num_free());
  RC_ASSERT(pool.stats().idle == static_cast<int64_t>(model.idle().size()));
  RC_ASSERT(pool.available() == model.num_free() + static_cast<int64_t>(model.idle().size()));
  const Status breach = pool.Check();
  if (!breach.ok()) RC_FAIL(breach.ToString());
  for (int32_t index = 1; index <= capacity; ++index) {
    const auto it = model.blocks().find(index);
    if (it == model.blocks().end()) {
      RC_ASSERT(pool.state(index) == BlockState::kFree);
      continue;
    }
    const ModelBlock& block = it->second;
    const bool idle = std::ranges::count(model.idle(), index) > 0;
    RC_ASSERT(pool.num_refs(index) == block.refs);
    RC_ASSERT(pool.state(index) == (!block.key       ? BlockState::kFilling
                                    : !block.indexed ? BlockState::kVerified
                                    : idle           ? BlockState::kIdle
                                                     : BlockState::kAttached));
    if (block.key) RC_ASSERT(pool.key(index) == *block.key && pool.replay_gen(index) == block.gen);
  }
}

// A live sequence of the test: its blocks in chain order and how many of them are published.
struct Chain {
  uint8_t id = 0;
  std::vector<int32_t> table;
  size_t num_published = 0;
};

RC_GTEST_PROP(BlockPoolProperty, AgreesWithTheModelUnderRandomOperations, ()) {
  const auto capacity = *rc::gen::inRange<int32_t>(1, 12);
  BlockPool pool(capacity + 1);
  Model model(capacity);
  std::vector<Chain> chains;
  std::vector<int32_t> pinned;
  const auto random_keys = [] {
    std::vector<BlockKey> keys;
    const auto chain = *rc::gen::inRange<uint8_t>(0, 4);
    const auto count = *rc::gen::inRange<uint8_t>(1, 6);
    for (uint8_t depth = 0; depth < count; ++depth) keys.push_back(Key(chain, depth));
    return keys;
  };
  const auto steps = *rc::gen::inRange(1, 120);
  for (int step = 0; step < steps; ++step) {
    const auto any_chain = [&] { return *rc::gen::inRange<size_t>(0, chains.size()); };
    switch (*rc::gen::inRange(0, 9)) {
      case 0: {  // a new sequence, with whatever of its prefix is cached
        Chain chain{*rc::gen::inRange<uint8_t>(0, 4), {}, 0};
        std::vector<BlockKey> keys;
        for (uint8_t depth = 0; depth < 5; ++depth) keys.push_back(Key(chain.id, depth));
        const auto max_gen = *rc::gen::inRange<uint16_t>(0, 3);
        const int64_t count = pool.CountHit(keys, max_gen);
        chain.table = pool.AcquireHit(keys, max_gen);
        RC_ASSERT(static_cast<int64_t>(chain.table.size()) == count);
        for (size_t i = 0; i < keys.size(); ++i) {
          const int32_t expected = model.Find(keys[i]);
          if (i >= chain.table.size()) {
            RC_ASSERT((expected == 0 || model.blocks().at(expected).gen > max_gen));
            break;
          }
          RC_ASSERT(expected == chain.table[i]);
          model.Acquire(expected);
        }
        chain.num_published = chain.table.size();
        chains.push_back(chain);
        break;
      }
      case 1: {  // a sequence grows
        if (chains.empty()) break;
        const int64_t before = pool.available();
        const int32_t index = pool.Allocate();
        RC_ASSERT((index == 0) == (before == 0));
        if (index == 0) break;
        model.Allocated(index);
        chains[any_chain()].table.push_back(index);
        break;
      }
      case 2: {  // a block is complete
        if (chains.empty()) break;
        Chain& chain = chains[any_chain()];
        if (chain.num_published == chain.table.size()) break;
        const BlockKey key = Key(chain.id, static_cast<uint8_t>(chain.num_published));
        const auto gen = *rc::gen::inRange<uint16_t>(0, 3);
        const int32_t index = chain.table[chain.num_published++];
        RC_ASSERT(pool.Publish(index, key, gen) == model.Publish(index, key, gen));
        break;
      }
      case 3: {  // a sequence ends
        if (chains.empty()) break;
        const size_t ended = any_chain();
        pool.ReleaseChain(chains[ended].table);
        model.Release(chains[ended].table);
        chains.erase(chains.begin() + static_cast<std::ptrdiff_t>(ended));
        break;
      }
      case 4: {  // a fork shares the published blocks
        if (chains.empty()) break;
        Chain fork = chains[any_chain()];
        fork.table.resize(fork.num_published);
        for (const int32_t index : fork.table) {
          pool.AddRef(index);
          model.Acquire(index);
        }
        chains.push_back(fork);
        break;
      }
      case 5: {
        if (model.blocks().empty()) break;
        const auto at = *rc::gen::inRange<size_t>(0, model.blocks().size());
        const int32_t index = std::next(model.blocks().begin(), static_cast<int>(at))->first;
        pool.Pin(index);
        model.Pin(index);
        pinned.push_back(index);
        break;
      }
      case 6: {
        if (pinned.empty()) break;
        const auto at = *rc::gen::inRange<size_t>(0, pinned.size());
        pool.Unpin(pinned[at]);
        model.Unpin(pinned[at]);
        pinned.erase(pinned.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      case 7: {
        const auto keys = random_keys();
        pool.Touch(keys);
        for (size_t i = keys.size(); i-- > 0;) model.Touch(keys[i]);
        break;
      }
      case 8: {
        const BlockKey key = random_keys().back();
        RC_ASSERT(pool.Erase(key) == model.Erase(key));
        break;
      }
    }
    ExpectEqual(pool, model, capacity);
  }
  for (const Chain& chain : chains) pool.ReleaseChain(chain.table);
  for (const int32_t index : pinned) pool.Unpin(index);
  RC_ASSERT(pool.stats().refs_taken == pool.stats().refs_released);
  RC_ASSERT(pool.stats().pins_taken == pool.stats().pins_released);
  RC_ASSERT(pool.available() == capacity);
}

}  // namespace
}  // namespace deepinfer
