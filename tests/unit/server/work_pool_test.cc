#include "server/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>

namespace deepinfer {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

TEST(WorkPool, RunsWhatWasQueuedBeforeStop) {
  std::atomic<int> ran{0};
  WorkPool pool(3, kUnlimited);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pool.TryPost([&] { ++ran; }));
  pool.Stop();
  EXPECT_EQ(ran, 1000);
  EXPECT_FALSE(pool.TryPost([] {}));
}

TEST(WorkPool, RefusesBeyondItsQueue) {
  WorkPool pool(1, 2);
  std::promise<void> started;
  std::promise<void> release;
  ASSERT_TRUE(pool.TryPost([&] {
    started.set_value();
    release.get_future().wait();
  }));
  started.get_future().wait();
  EXPECT_TRUE(pool.TryPost([] {}));
  EXPECT_TRUE(pool.TryPost([] {}));
  EXPECT_FALSE(pool.TryPost([] {}));
  release.set_value();
}

TEST(SerialQueue, KeepsOrderAndNeverOverlaps) {
  WorkPool pool(4, kUnlimited);
  std::vector<int> order;  // unguarded on purpose: only one task may touch it at a time
  std::promise<void> done;
  auto queue = std::make_shared<SerialQueue>(&pool);
  constexpr int kTasks = 5000;
  for (int i = 0; i < kTasks; ++i) {
    queue->Post([&, i] {
      order.push_back(i);
      if (i == kTasks - 1) done.set_value();
    });
  }
  done.get_future().wait();
  ASSERT_EQ(order.size(), static_cast<size_t>(kTasks));
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SerialQueue, BusyQueueDoesNotStarveAnother) {
  WorkPool pool(1, kUnlimited);
  auto busy = std::make_shared<SerialQueue>(&pool);
  auto other = std::make_shared<SerialQueue>(&pool);
  std::promise<void> other_ran;
  std::atomic<bool> stop{false};
  std::function<void()> again = [&] {
    if (!stop) busy->Post(again);
  };
  busy->Post(again);
  other->Post([&] { other_ran.set_value(); });
  other_ran.get_future().wait();
  stop = true;
  std::promise<void> flushed;
  busy->Post([&] { flushed.set_value(); });
  flushed.get_future().wait();
}

}  // namespace
}  // namespace deepinfer
