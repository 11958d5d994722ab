#include "kvcache/read_backend.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace deepinfer {

Status OpenFor(ReadRequest* request) {
  if (request->file != nullptr) return OkStatus();
  DI_ASSIGN_OR_RETURN(request->file, request->open());
  return OkStatus();
}

void ReadHere(ReadRequest request) {
  if (const Status opened = OpenFor(&request); !opened.ok()) return request.done(opened);
  request.done(request.file->ReadAt(request.into, request.offset));
}

namespace {

class InlineReads final : public ReadBackend {
 public:
  void Submit(ReadRequest request) override { ReadHere(std::move(request)); }
  const char* name() const override { return "inline"; }
};

class ThreadReads final : public ReadBackend {
 public:
  explicit ThreadReads(int32_t num_threads) {
    for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  ~ThreadReads() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(ReadRequest request) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(request));
    work_.notify_one();
  }
  const char* name() const override { return "threads"; }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      ReadRequest request = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      ReadHere(std::move(request));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<ReadRequest> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> MakeInlineReads() { return std::make_unique<InlineReads>(); }

std::unique_ptr<ReadBackend> MakeThreadReads(int32_t num_threads) {
  return std::make_unique<ThreadReads>(num_threads);
}

}  // namespace deepinfer
