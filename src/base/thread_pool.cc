#include "base/thread_pool.h"

#include <immintrin.h>

#include <system_error>

#include "base/thread_name.h"

namespace deepinfer {

namespace {
// About 20 µs of polling: longer than the gap between two operators of a step, shorter than a
// scheduler tick, so that an idle or preempted core is given up quickly.
constexpr int kSpinPolls = 2000;
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    try {
      workers_.emplace_back([this] { WorkerLoop(); });
    } catch (const std::system_error&) {
      // The process may start no more threads; results do not depend on their number.
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

bool ThreadPool::RunTiles() {
  bool any = false;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) != kClosed) {
    // Acquire, against the release stores of Run: who sees a field of the next job also sees the
    // closed ticket, so the compare-exchange below fails.
    const TileFn fn = fn_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const uint32_t num_tiles = num_tiles_.load(std::memory_order_acquire);
    const uint32_t tile = static_cast<uint32_t>(ticket);
    if (tile >= num_tiles) break;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    any = true;
    fn(context, tile);
    if (num_completed_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_tiles) {
      num_completed_.notify_one();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
  return any;
}

void ThreadPool::Run(TileFn fn, void* context, uint32_t num_tiles) {
  const uint64_t id = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store((id << 32) | kClosed, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  num_tiles_.store(num_tiles, std::memory_order_release);
  num_completed_.store(0, std::memory_order_relaxed);
  ticket_.store((id + 1) << 32, std::memory_order_seq_cst);
  wake_.fetch_add(1, std::memory_order_seq_cst);
  if (num_parked_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();

  RunTiles();
  for (int polls = 0;; ++polls) {
    const uint32_t done = num_completed_.load(std::memory_order_acquire);
    if (done == num_tiles) return;
    if (polls < kSpinPolls) {
      _mm_pause();
    } else {
      num_completed_.wait(done, std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop() {
  NameThread("compute");
  while (true) {
    const uint32_t seen = wake_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    if (RunTiles()) continue;
    bool woken = false;
    for (int polls = 0; polls < kSpinPolls && !woken; ++polls) {
      _mm_pause();
      woken = wake_.load(std::memory_order_acquire) != seen;
    }
    if (woken) continue;
    num_parked_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(seen, std::memory_order_acquire);
    num_parked_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace deepinfer
