#include "base/thread_affinity.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace deepinfer {

namespace {

void StayOn(int cpu) {
  const size_t size = CPU_ALLOC_SIZE(cpu + 1);
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (set == nullptr) return;
  CPU_ZERO_S(size, set);
  CPU_SET_S(static_cast<size_t>(cpu), size, set);
  static_cast<void>(pthread_setaffinity_np(pthread_self(), size, set));
  CPU_FREE(set);
}

}  // namespace

void PinWorkers(ThreadPool* pool, std::span<const int> cpus) {
  const int num_threads = pool->num_threads();
  if (cpus.size() < static_cast<size_t>(num_threads)) return;
  const std::thread::id caller = std::this_thread::get_id();
  // No tile ends before all have begun, so every thread has exactly one.
  std::atomic<int> num_begun{0};
  std::atomic<size_t> next_worker{1};
  pool->ParallelFor(num_threads, [&](int64_t) {
    if (std::this_thread::get_id() != caller) StayOn(cpus[next_worker.fetch_add(1)]);
    num_begun.fetch_add(1);
    while (num_begun.load() < num_threads) std::this_thread::yield();
  });
}

}  // namespace deepinfer
