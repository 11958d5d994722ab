#include "engine/side_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace deepinfer {
namespace {

TEST(SideWork, RunsEveryTaskOnceWithAnyNumberOfThreads) {
  for (const int threads : {0, 1, 3}) {
    SideWork work(threads);
    for (size_t batch = 0; batch < 300; ++batch) {
      std::vector<std::atomic<int>> count(batch % 9);
      work.Begin(count.size(), [&](size_t i) { count[i].fetch_add(1); });
      work.Finish();
      for (const auto& c : count) ASSERT_EQ(c.load(), 1) << "batch " << batch;
    }
    if (threads == 0) {
      EXPECT_EQ(work.num_beside(), 0);
    }
  }
}

TEST(SideWork, RunsBesideItsCaller) {
  SideWork work(1);
  std::promise<std::thread::id> ran;
  work.Begin(1, [&](size_t) { ran.set_value(std::this_thread::get_id()); });
  // The caller is still busy here: only a helper can have run it.
  std::future<std::thread::id> helper = ran.get_future();
  ASSERT_EQ(helper.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_NE(helper.get(), std::this_thread::get_id());
  work.Finish();
  EXPECT_EQ(work.num_beside(), 1);
}

// The helper is held by its first task until the caller has run the others.
TEST(SideWork, TheCallerTakesPartInWhatIsLeft) {
  SideWork work(1);
  std::promise<void> begun, release;
  std::future<void> released = release.get_future();
  std::atomic<int> num_by_caller{0};
  const std::thread::id caller = std::this_thread::get_id();
  work.Begin(4, [&](size_t) {
    if (std::this_thread::get_id() != caller) {
      begun.set_value();
      released.wait();
    } else if (++num_by_caller == 3) {
      release.set_value();
    }
  });
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  work.Finish();
  EXPECT_EQ(num_by_caller, 3);
  EXPECT_EQ(work.num_beside(), 1);
}

TEST(SideWork, MayEndWithoutEverHavingBegun) {
  SideWork work(2);
  work.Finish();
}

}  // namespace
}  // namespace deepinfer
