// Fork-join pool for operators: the caller and the workers take tiles of one job dynamically.
// A worker that lost its core delays only the tile it holds. Workers spin briefly, then park.
// Thread rule: one caller at a time (the engine thread); tiles must not call back into the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace deepinfer {

class ThreadPool {
 public:
  // num_threads >= 1 counts the caller: 1 starts no thread and runs every tile inline. Where the
  // system refuses a thread, the pool stays smaller; num_threads() tells.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(tile) once for each tile in [0, num_tiles), num_tiles < 2^32 - 1; returns when all
  // have finished. The order and the thread of a tile are unspecified, so results must not depend
  // on them.
  template <typename Fn>
  void ParallelFor(int64_t num_tiles, Fn&& fn) {
    if (num_tiles <= 0) return;
    if (workers_.empty() || num_tiles == 1) {
      for (int64_t i = 0; i < num_tiles; ++i) fn(i);
      return;
    }
    using F = std::remove_reference_t<Fn>;
    Run([](void* context, int64_t tile) { (*static_cast<F*>(context))(tile); },
        const_cast<void*>(static_cast<const void*>(&fn)), static_cast<uint32_t>(num_tiles));
  }

 private:
  using TileFn = void (*)(void* context, int64_t tile);

  void Run(TileFn fn, void* context, uint32_t num_tiles);
  // Takes tiles of the current job until none is left; false if there was none to take.
  bool RunTiles();
  void WorkerLoop();

  // Job id in the high half, next tile in the low half. While the fields below change the low
  // half is kClosed, so a late worker's compare-exchange on the old value fails.
  static constexpr uint32_t kClosed = 0xFFFFFFFFu;
  alignas(64) std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<TileFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> num_tiles_{0};
  alignas(64) std::atomic<uint32_t> num_completed_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int32_t> num_parked_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace deepinfer
