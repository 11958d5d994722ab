#include "engine/side_work.h"

#include <system_error>
#include <utility>

namespace deepinfer {

SideWork::~SideWork() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begun_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void SideWork::StartThreads(size_t num_tasks) {
  while (threads_.size() < num_tasks && static_cast<int>(threads_.size()) < max_threads_) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      // The process may start no more threads; Finish does what they would.
      return;
    }
  }
}

void SideWork::Begin(size_t num_tasks, std::function<void(size_t)> task) {
  if (num_tasks == 0) return;
  StartThreads(num_tasks);
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    num_tasks_ = num_tasks;
    next_ = num_done_ = 0;
  }
  begun_.notify_all();
}

void SideWork::Finish() {
  std::unique_lock lock(mutex_);
  while (RunNext(&lock)) {
  }
  finished_.wait(lock, [this] { return num_done_ == num_tasks_; });
  num_tasks_ = next_ = num_done_ = 0;
  task_ = nullptr;
}

int64_t SideWork::num_beside() const {
  const std::lock_guard lock(mutex_);
  return num_beside_;
}

void SideWork::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return stop_ || next_ < num_tasks_; });
    if (stop_) return;
    while (RunNext(&lock)) ++num_beside_;
  }
}

bool SideWork::RunNext(std::unique_lock<std::mutex>* lock) {
  if (next_ >= num_tasks_) return false;
  const size_t i = next_++;
  lock->unlock();
  task_(i);
  lock->lock();
  if (++num_done_ == num_tasks_) finished_.notify_one();
  return true;
}

}  // namespace deepinfer
