#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer {
namespace {

constexpr uint16_t kAnyGen = 65535;

BlockKey Key(uint8_t number) {
  BlockKey key;
  key.bytes.fill(number);
  return key;
}

std::vector<BlockKey> Keys(std::initializer_list<uint8_t> numbers) {
  std::vector<BlockKey> keys;
  for (const uint8_t number : numbers) keys.push_back(Key(number));
  return keys;
}

// Allocates and publishes one block per key; the sequence's table.
std::vector<int32_t> Compute(BlockPool* pool, const std::vector<BlockKey>& keys, uint16_t gen = 0) {
  std::vector<int32_t> table;
  for (const BlockKey& key : keys) {
    table.push_back(pool->Allocate());
    EXPECT_NE(table.back(), 0);
    pool->Publish(table.back(), key, gen);
  }
  return table;
}

TEST(BlockPool, NeverLendsBlockZeroAndEndsWithNone) {
  BlockPool pool(4);
  std::vector<int32_t> blocks;
  EXPECT_TRUE(pool.Allocate(3, &blocks));
  std::ranges::sort(blocks);
  EXPECT_EQ(blocks, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_FALSE(pool.Allocate(1, &blocks));
  EXPECT_EQ(blocks.size(), 3u);
}

TEST(BlockPool, ReturnsUnfinishedBlocksToTheFreeList) {
  BlockPool pool(3);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.Allocate(2, &table));
  pool.ReleaseChain(table);
  EXPECT_EQ(pool.stats().free, 2);
  EXPECT_EQ(pool.stats().idle, 0);
}

TEST(BlockPool, FindsPublishedBlocksWhileAndAfterTheyAreUsed) {
  BlockPool pool(5);
  const auto keys = Keys({1, 2, 3});
  const auto table = Compute(&pool, keys);
  const auto shared = pool.AcquireHit(keys, kAnyGen);
  EXPECT_EQ(shared, table);
  EXPECT_EQ(pool.num_refs(table[0]), 2);
  pool.ReleaseChain(table);
  pool.ReleaseChain(shared);
  EXPECT_EQ(pool.stats().idle, 3);
  EXPECT_EQ(pool.AcquireHit(keys, kAnyGen), table);
}

TEST(BlockPool, HitEndsAtTheFirstMissingKeyOrHigherGeneration) {
  BlockPool pool(9);
  Compute(&pool, Keys({1, 2}));
  Compute(&pool, Keys({3}), 1);
  Compute(&pool, Keys({4}));
  EXPECT_EQ(pool.CountHit(Keys({1, 2, 3, 4, 5}), kAnyGen), 4);
  EXPECT_EQ(pool.CountHit(Keys({1, 2, 3, 4, 5}), 0), 2);
  EXPECT_EQ(pool.AcquireHit(Keys({1, 9, 2}), kAnyGen).size(), 1u);
}

TEST(BlockPool, FirstCompleteWriterWinsAndTheOtherKeepsItsCopy) {
  BlockPool pool(4);
  const int32_t first = pool.Allocate();
  const int32_t second = pool.Allocate();
  EXPECT_TRUE(pool.Publish(first, Key(1), 0));
  EXPECT_FALSE(pool.Publish(second, Key(1), 0));
  EXPECT_EQ(pool.state(second), BlockState::kVerified);
  EXPECT_EQ(pool.Find(Key(1)), first);
  pool.ReleaseChain({&second, 1});
  EXPECT_EQ(pool.state(second), BlockState::kFree);
  EXPECT_EQ(pool.stats().duplicates, 1);
}

TEST(BlockPool, ABlockOfALowerGenerationTakesThePlaceOfAnother) {
  BlockPool pool(4);
  const int32_t first = pool.Allocate();
  const int32_t second = pool.Allocate();
  EXPECT_TRUE(pool.Publish(first, Key(1), 2));
  EXPECT_TRUE(pool.Publish(second, Key(1), 1));
  EXPECT_EQ(pool.Find(Key(1)), second);
  EXPECT_EQ(pool.state(first), BlockState::kVerified) << "its holder goes on with it";
  pool.ReleaseChain({&first, 1});
  EXPECT_EQ(pool.state(first), BlockState::kFree);
  pool.ReleaseChain({&second, 1});
  EXPECT_EQ(pool.CountHit(Keys({1}), 1), 1);
}

TEST(BlockPool, ReclaimsTheDeepestBlockOfTheOldestChainFirst) {
  BlockPool pool(5);
  const auto old_chain = Compute(&pool, Keys({1, 2}));
  const auto new_chain = Compute(&pool, Keys({3, 4}));
  pool.ReleaseChain(old_chain);
  pool.ReleaseChain(new_chain);
  for (const uint8_t expected : {2, 1, 4, 3}) {
    EXPECT_NE(pool.Find(Key(expected)), 0) << int{expected};
    EXPECT_NE(pool.Allocate(), 0);
    EXPECT_EQ(pool.Find(Key(expected)), 0) << int{expected};
  }
  EXPECT_EQ(pool.stats().reclaimed, 4);
}

TEST(BlockPool, TouchedChainsAreReclaimedLater) {
  BlockPool pool(5);
  pool.ReleaseChain(Compute(&pool, Keys({1, 2})));
  pool.ReleaseChain(Compute(&pool, Keys({3, 4})));
  pool.Touch(Keys({1, 2, 9}));
  pool.Allocate();
  EXPECT_EQ(pool.Find(Key(4)), 0);
  EXPECT_NE(pool.Find(Key(2)), 0);
}

TEST(BlockPool, ParentsOutliveChildrenWhenTwoSequencesComputeOnePrefix) {
  BlockPool pool(6);
  const std::vector<int32_t> a = {pool.Allocate(), pool.Allocate()};
  const std::vector<int32_t> b = {pool.Allocate(), pool.Allocate()};
  pool.Publish(a[0], Key(1), 0);
  pool.Publish(b[0], Key(1), 0);
  pool.Publish(b[1], Key(2), 0);
  pool.Publish(a[1], Key(2), 0);
  pool.ReleaseChain(a);
  pool.ReleaseChain(b);
  ASSERT_EQ(pool.stats().idle, 2);
  while (pool.Find(Key(2)) != 0) ASSERT_NE(pool.Allocate(), 0);
  EXPECT_NE(pool.Find(Key(1)), 0);
}

TEST(BlockPool, PinnedBlocksOutliveTheirReferences) {
  BlockPool pool(3);
  const auto table = Compute(&pool, Keys({1}));
  const int32_t unfinished = pool.Allocate();
  pool.Pin(table[0]);
  pool.Pin(unfinished);
  pool.ReleaseChain(table);
  pool.ReleaseChain({&unfinished, 1});
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.Allocate(), 0);
  pool.Unpin(unfinished);
  EXPECT_EQ(pool.state(unfinished), BlockState::kFree);
  pool.Unpin(table[0]);
  EXPECT_EQ(pool.state(table[0]), BlockState::kIdle);
}

TEST(BlockPool, ForkedBlocksStayUntilTheLastBranchEnds) {
  BlockPool pool(3);
  const auto table = Compute(&pool, Keys({1}));
  pool.AddRef(table[0]);
  pool.ReleaseChain(table);
  EXPECT_EQ(pool.state(table[0]), BlockState::kAttached);
  pool.ReleaseChain(table);
  EXPECT_EQ(pool.state(table[0]), BlockState::kIdle);
}

TEST(BlockPool, ErasedKeysAreNotFoundButHoldersKeepTheirBlock) {
  BlockPool pool(4);
  const auto held = Compute(&pool, Keys({1}));
  pool.ReleaseChain(Compute(&pool, Keys({2})));
  EXPECT_TRUE(pool.Erase(Key(1)));
  EXPECT_TRUE(pool.Erase(Key(2)));
  EXPECT_FALSE(pool.Erase(Key(2)));
  EXPECT_EQ(pool.state(held[0]), BlockState::kVerified);
  EXPECT_EQ(pool.CountHit(Keys({1}), kAnyGen), 0);
  pool.ReleaseChain(held);
  EXPECT_EQ(pool.stats().free, 3);
}

TEST(BlockPool, DropIdleEmptiesTheCache) {
  BlockPool pool(4);
  pool.ReleaseChain(Compute(&pool, Keys({1, 2})));
  const auto held = Compute(&pool, Keys({3}));
  EXPECT_EQ(pool.DropIdle(), 2);
  EXPECT_EQ(pool.stats().free, 2);
  EXPECT_EQ(pool.CountHit(Keys({3}), kAnyGen), 1);
  pool.ReleaseChain(held);
}

TEST(BlockPoolDeathTest, RefusesMisuse) {
  BlockPool pool(3);
  const auto table = Compute(&pool, Keys({1}));
  EXPECT_DEATH(pool.Publish(table[0], Key(2), 0), "kFilling");
  EXPECT_DEATH(pool.Unpin(table[0]), "pins");
  pool.ReleaseChain(table);
  EXPECT_DEATH(pool.ReleaseChain(table), "refs");
  EXPECT_DEATH(pool.AddRef(table[0]), "refs");
}

}  // namespace
}  // namespace deepinfer
