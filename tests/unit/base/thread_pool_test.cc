#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace deepinfer {
namespace {

TEST(ThreadPool, RunsEveryTileExactlyOnce) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 17, 1000}) {
      std::vector<std::atomic<int>> count(static_cast<size_t>(n));
      pool.ParallelFor(n, [&](int64_t i) { count[static_cast<size_t>(i)].fetch_add(1); });
      for (auto& c : count) EXPECT_EQ(c.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortJobsSeeTheirOwnContext) {
  ThreadPool pool(4);
  for (int job = 0; job < 20000; ++job) {
    std::atomic<int64_t> sum{0};
    const int n = 1 + job % 7;
    pool.ParallelFor(n, [&, job](int64_t i) { sum.fetch_add(job + i); });
    ASSERT_EQ(sum.load(), int64_t{job} * n + n * (n - 1) / 2);
  }
}

}  // namespace
}  // namespace deepinfer
