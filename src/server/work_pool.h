// Threads for work that must not run on network threads: parsing, tokenising, building answers.
// Thread rule: every method may be called from any thread, Stop from none of the pool's own.
// Owner: server/server.cc.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer {

class WorkPool {
 public:
  WorkPool(int num_threads, size_t max_queued);
  ~WorkPool() { Stop(); }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when max_queued tasks wait already or the pool has stopped.
  [[nodiscard]] bool TryPost(std::function<void()> task);

  // Runs what is queued, then joins the threads. Idempotent.
  void Stop();

 private:
  void Loop();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Runs its tasks on a pool, one at a time and in order. Create through std::make_shared: queued
// work keeps it alive.
class SerialQueue : public std::enable_shared_from_this<SerialQueue> {
 public:
  // pool is borrowed, has no queue limit and is stopped only when nothing posts any more.
  explicit SerialQueue(WorkPool* pool) : pool_(pool) {}

  void Post(std::function<void()> task);

 private:
  void Schedule();
  void Run();

  WorkPool* pool_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  bool scheduled_ = false;
};

}  // namespace deepinfer
