#include "kvcache/swa_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace deepinfer {
namespace {

BlockKey Key(uint8_t number) {
  BlockKey key;
  key.bytes.fill(number);
  return key;
}

std::vector<std::byte> Bytes(size_t size, uint8_t value) {
  return std::vector<std::byte>(size, std::byte{value});
}

constexpr int64_t kLayerBytes = 20;

class SwaPoolTest : public testing::Test {
 protected:
  bool Put(uint8_t number, int64_t now_us, uint16_t gen = 0) {
    return pool_.PutSnapshot(Key(number), 128 * number, gen, Bytes(100, number), kLayerBytes,
                             now_us);
  }
  bool Has(uint8_t number, int64_t now_us, uint16_t max_gen = 65535) {
    const auto snapshot = pool_.GetSnapshot(Key(number), max_gen, now_us);
    return snapshot && snapshot->edge == 128 * number &&
           std::ranges::equal(snapshot->bytes, Bytes(100, number));
  }

  SwaPool pool_{{.capacity_bytes = 350, .time_to_live_us = 1000}};
};

TEST_F(SwaPoolTest, ReturnsWhatWasPut) {
  EXPECT_TRUE(Put(1, 0));
  EXPECT_TRUE(Has(1, 1));
  EXPECT_FALSE(Has(2, 1));
  EXPECT_EQ(pool_.stats().snapshot_hits, 1);
  EXPECT_EQ(pool_.stats().snapshot_misses, 1);
}

TEST_F(SwaPoolTest, DropsTheLeastRecentlyUsedSnapshotForRoom) {
  for (uint8_t n : {1, 2, 3}) EXPECT_TRUE(Put(n, n));
  EXPECT_TRUE(Has(1, 4));
  EXPECT_TRUE(Put(4, 5));
  EXPECT_FALSE(Has(2, 6));
  EXPECT_TRUE(Has(1, 6));
  EXPECT_TRUE(Has(3, 6));
  EXPECT_EQ(pool_.stats().evicted, 1);
}

TEST_F(SwaPoolTest, ForgetsAfterTheTimeToLive) {
  Put(1, 0);
  Put(2, 500);
  EXPECT_FALSE(Has(1, 1000));
  EXPECT_TRUE(Has(2, 1400));
  EXPECT_TRUE(Has(2, 2300));  // use renews it
  EXPECT_EQ(pool_.stats().expired, 1);
}

TEST_F(SwaPoolTest, KeepsTheSnapshotOfTheLowerGeneration) {
  Put(1, 0, 2);
  EXPECT_FALSE(Has(1, 1, 1));
  Put(1, 2, 1);
  EXPECT_TRUE(Has(1, 3, 1));
  Put(1, 4, 5);
  EXPECT_TRUE(Has(1, 5, 1));
  EXPECT_EQ(pool_.stats().num_snapshots, 1);
}

TEST_F(SwaPoolTest, FindsTheDeepestSnapshotInTheRange) {
  const std::vector<BlockKey> keys = {Key(1), Key(2), Key(3), Key(4)};
  Put(1, 0);
  Put(3, 0);
  Put(4, 0);
  EXPECT_EQ(pool_.FindSnapshot(keys, 128, 0, 512, 0, 1)->edge, 512);
  EXPECT_EQ(pool_.FindSnapshot(keys, 128, 0, 511, 0, 1)->edge, 384);
  EXPECT_EQ(pool_.FindSnapshot(keys, 128, 0, 383, 0, 1)->edge, 128);
  EXPECT_FALSE(pool_.FindSnapshot(keys, 128, 200, 383, 0, 1));
}

TEST_F(SwaPoolTest, ParkImagesPushSnapshotsOutButNotTheReverse) {
  Put(1, 0);
  Put(2, 0);
  EXPECT_TRUE(pool_.PutParkImage("a", Bytes(300, 9), 1));
  EXPECT_EQ(pool_.stats().num_snapshots, 0);
  EXPECT_FALSE(Put(3, 2));
  EXPECT_EQ(pool_.stats().refused, 1);
  EXPECT_EQ(pool_.TakeParkImage("a", 3), Bytes(300, 9));
  EXPECT_EQ(pool_.TakeParkImage("a", 3), std::nullopt);
  EXPECT_TRUE(Put(3, 4));
}

TEST_F(SwaPoolTest, DropsTheOldestParkImageLast) {
  EXPECT_TRUE(pool_.PutParkImage("a", Bytes(200, 1), 1));
  EXPECT_TRUE(pool_.PutParkImage("b", Bytes(200, 2), 2));
  EXPECT_EQ(pool_.TakeParkImage("a", 3), std::nullopt);
  EXPECT_EQ(pool_.TakeParkImage("b", 3), Bytes(200, 2));
  EXPECT_FALSE(pool_.PutParkImage("c", Bytes(351, 3), 4));
  EXPECT_EQ(pool_.stats().park_bytes, 0);
}

TEST_F(SwaPoolTest, NoticesBytesThatChangedInMemory) {
  Put(1, 0);
  auto snapshot = pool_.GetSnapshot(Key(1), 0, 1);
  const_cast<std::byte&>(snapshot->bytes[57]) ^= std::byte{4};
  EXPECT_FALSE(Has(1, 2));
  EXPECT_EQ(pool_.stats().corrupt, 1);
  EXPECT_EQ(pool_.stats().snapshot_bytes, 0);
}

RC_GTEST_PROP(SwaPoolProperty, NeverExceedsItsBytesAndReturnsOnlyWhatWasPut, ()) {
  SwaPool pool({.capacity_bytes = 1000, .time_to_live_us = 50});
  int64_t now_us = 0;
  const auto steps = *rc::gen::inRange(1, 200);
  for (int step = 0; step < steps; ++step) {
    now_us += *rc::gen::inRange(0, 10);
    const auto number = *rc::gen::inRange<uint8_t>(1, 12);
    const auto size = static_cast<size_t>(number) * 20;  // a key fixes its bytes
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        pool.PutSnapshot(Key(number), 128 * number, 0, Bytes(size, number), kLayerBytes, now_us);
        break;
      case 1:
        if (const auto snapshot = pool.GetSnapshot(Key(number), 0, now_us)) {
          RC_ASSERT(std::ranges::equal(snapshot->bytes, Bytes(size, number)));
        }
        break;
      case 2:
        pool.PutParkImage(std::to_string(number), Bytes(size, number), now_us);
        break;
      case 3:
        if (const auto image = pool.TakeParkImage(std::to_string(number), now_us)) {
          RC_ASSERT(*image == Bytes(size, number));
        }
        break;
      case 4:
        pool.EraseSnapshot(Key(number));
        break;
    }
    const SwaPoolStats& stats = pool.stats();
    RC_ASSERT(stats.snapshot_bytes + stats.park_bytes <= 1000);
    RC_ASSERT(stats.snapshot_bytes >= 0 && stats.park_bytes >= 0);
  }
  pool.Expire(now_us + 50);
  RC_ASSERT(pool.stats().snapshot_bytes == 0 && pool.stats().park_bytes == 0);
  RC_ASSERT(pool.stats().num_snapshots == 0 && pool.stats().num_park_images == 0);
}

}  // namespace
}  // namespace deepinfer
