#include "server/replay_store.h"

#include <gtest/gtest.h>

#include "support/fake_clock.h"

namespace deepinfer {
namespace {

const ReplayOwner kOurs{{1}, 7};
const ReplayOwner kTheirs{{2}, 8};

std::string Id(int i) { return "call_00_" + std::to_string(i); }

TEST(ReplayStore, ATurnIsFoundByAnyOfItsCallsWithinItsScope) {
  const FakeClock clock;
  ReplayStore store(clock);
  store.Keep(kOurs, {"a", "b"}, {1, 2, 3});
  ASSERT_NE(store.Find(kOurs, "a"), nullptr);
  EXPECT_EQ(*store.Find(kOurs, "a"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(store.Find(kOurs, "a"), store.Find(kOurs, "b"));
  EXPECT_EQ(store.Find(kOurs, "c"), nullptr);
  EXPECT_EQ(store.Find(kTheirs, "a"), nullptr);
}

TEST(ReplayStore, TheOldestGoBeyondTheMostIds) {
  const FakeClock clock;
  ReplayStore store(clock, {.max_ids = 3});
  for (int i = 0; i < 5; ++i) store.Keep(kOurs, {Id(i)}, {i});
  EXPECT_EQ(store.num_ids(), 3u);
  EXPECT_EQ(store.Find(kOurs, Id(1)), nullptr);
  EXPECT_NE(store.Find(kOurs, Id(2)), nullptr);
}

TEST(ReplayStore, TheOldestGoBeyondTheMostBytes) {
  const FakeClock clock;
  ReplayStore store(clock, {.max_bytes = 100'000});
  for (int i = 0; i < 100; ++i) store.Keep(kOurs, {Id(i)}, std::vector<int32_t>(1000));
  EXPECT_LE(store.num_bytes(), 100'000u);
  EXPECT_GT(store.num_ids(), 10u);
  EXPECT_NE(store.Find(kOurs, Id(99)), nullptr);
  EXPECT_EQ(store.Find(kOurs, Id(0)), nullptr);
  store.Keep(kOurs, {"huge"}, std::vector<int32_t>(100'000));
  EXPECT_EQ(store.num_ids(), 0u);
  EXPECT_EQ(store.num_bytes(), 0u);
}

TEST(ReplayStore, OldTurnsAreForgotten) {
  FakeClock clock;
  ReplayStore store(clock, {.max_age_us = 1000});
  store.Keep(kOurs, {"a"}, {1});
  clock.Advance(1000);
  EXPECT_NE(store.Find(kOurs, "a"), nullptr);
  clock.Advance(1);
  EXPECT_EQ(store.Find(kOurs, "a"), nullptr);
  store.Keep(kOurs, {"b"}, {1});
  EXPECT_EQ(store.num_ids(), 1u);
}

}  // namespace
}  // namespace deepinfer
