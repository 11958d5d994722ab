#include "kvcache/slot_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace deepinfer {
namespace {

TEST(SlotPool, LendsEverySlotOnceAndThenNone) {
  SlotPool pool(3);
  std::set<int32_t> lent;
  for (int i = 0; i < 3; ++i) lent.insert(pool.Acquire());
  EXPECT_EQ(lent, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.Acquire(), -1);
  pool.Release(1);
  EXPECT_EQ(pool.Acquire(), 1);
  EXPECT_EQ(pool.acquired() - pool.released(), 3);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(SlotPoolDeathTest, RefusesToTakeASlotBackTwice) {
  SlotPool pool(1);
  pool.Release(pool.Acquire());
  EXPECT_DEATH(pool.Release(0), "lent_");
  EXPECT_DEATH(pool.Release(1), "num_slots");
}

}  // namespace
}  // namespace deepinfer
