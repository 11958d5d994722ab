// Short tasks beside the caller's own work: token masks while the operators compute
// (structured_outputs.md §6). Helpers sleep between batches; none is started before the first.
// Thread rule: Begin and Finish on one thread; tasks run on the helpers and inside Finish.
// Owner: StepExecutor.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer {

class SideWork {
 public:
  // Where the system refuses a thread there are fewer helpers; Finish then does the work.
  explicit SideWork(int max_threads) : max_threads_(max_threads) {}
  ~SideWork();
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  // Calls task(i) once for each i in [0, num_tasks), in any order, until Finish returns; what it
  // refers to must live as long. Precondition: the batch before was finished.
  void Begin(size_t num_tasks, std::function<void(size_t)> task);

  // Takes part in what is left and returns when all of it has run.
  void Finish();

  // Tasks that helpers ran, of all batches.
  int64_t num_beside() const;

 private:
  void StartThreads(size_t num_tasks);
  void Loop();
  // Runs the next task, if one is left; `lock` is held before and after.
  bool RunNext(std::unique_lock<std::mutex>* lock);

  const int max_threads_;
  mutable std::mutex mutex_;
  std::condition_variable begun_, finished_;
  std::function<void(size_t)> task_;
  size_t num_tasks_ = 0;
  size_t next_ = 0;
  size_t num_done_ = 0;
  int64_t num_beside_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer
