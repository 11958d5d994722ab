#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
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

// Sanitizers map memory of their own when a thread starts and do not survive the limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, StaysSmallerWhereThreadsAreRefused) {
  const auto run_with_little_memory = [] {
    // The stack of every thread is 8 MiB of address space.
    struct rlimit stack {};
    getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = 8 << 20;
    setrlimit(RLIMIT_STACK, &stack);
    const struct rlimit space { 256 << 20, 256 << 20 };
    if (setrlimit(RLIMIT_AS, &space) != 0) std::_Exit(2);
    ThreadPool pool(1000);
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(100, [&](int64_t i) { sum.fetch_add(i); });
    std::_Exit(pool.num_threads() < 1000 && sum.load() == 4950 ? 0 : 1);
  };
  EXPECT_EXIT(run_with_little_memory(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace deepinfer
