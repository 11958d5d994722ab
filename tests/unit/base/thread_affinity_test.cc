#include "base/thread_affinity.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/cpu_topology.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

// The CPUs that each worker may use, asked of all workers at once.
std::multiset<std::vector<int>> CpusOfWorkers(ThreadPool* pool) {
  const std::thread::id caller = std::this_thread::get_id();
  std::multiset<std::vector<int>> found;
  std::mutex mutex;
  std::atomic<int> num_begun{0};
  pool->ParallelFor(pool->num_threads(), [&](int64_t) {
    num_begun.fetch_add(1);
    SpinUntil("every thread", [&] { return num_begun.load() >= pool->num_threads(); });
    if (std::this_thread::get_id() == caller) return;
    const std::lock_guard lock(mutex);
    found.insert(AllowedCpus());
  });
  return found;
}

TEST(PinWorkers, KeepsEveryWorkerOnItsCpuAndLeavesTheCallerFree) {
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool pool(3);
  const std::vector<int> cpus = {allowed.front(), allowed.back(), allowed.front()};
  PinWorkers(&pool, cpus);
  EXPECT_EQ(CpusOfWorkers(&pool),
            (std::multiset<std::vector<int>>{{allowed.back()}, {allowed.front()}}));
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(PinWorkers, DoesNothingWithoutACpuForEveryThread) {
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool pool(2);
  PinWorkers(&pool, {});
  PinWorkers(&pool, std::vector<int>{allowed.front()});
  EXPECT_EQ(CpusOfWorkers(&pool), std::multiset<std::vector<int>>{allowed});
}

TEST(PinWorkers, LeavesAWorkerAloneWhoseCpuIsNotThere) {
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool pool(2);
  PinWorkers(&pool, std::vector<int>{0, 8191});
  EXPECT_EQ(CpusOfWorkers(&pool), std::multiset<std::vector<int>>{allowed});
}

}  // namespace
}  // namespace deepinfer
