#include <fmt/core.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "kvcache/read_backend.h"

namespace deepinfer {
namespace {

// One thread owns the ring. An event number wakes it: its own read is always in flight, so that
// waiting for completions also waits for new work.
class UringReads final : public ReadBackend {
 public:
  UringReads(int32_t depth, int event) : depth_(depth), event_(event) {}

  Status Start() {
    // One more place for the event.
    const int error = io_uring_queue_init(static_cast<unsigned>(depth_) + 1, &ring_, 0);
    if (error < 0) return Unsupported(fmt::format("io_uring: {}", std::strerror(-error)));
    thread_ = std::thread([this] { Run(); });
    return OkStatus();
  }

  ~UringReads() override {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        stop_ = true;
      }
      Wake();
      thread_.join();
      io_uring_queue_exit(&ring_);
    }
    close(event_);
  }

  void Submit(ReadRequest request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(request));
    }
    Wake();
  }
  const char* name() const override { return "io_uring"; }

 private:
  void Wake() const {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the thread is about to wake anyway.
    (void)!write(event_, &one, sizeof(one));
  }

  void Run() {
    ArmEvent();
    int32_t in_flight = 0;
    for (;;) {
      std::deque<ReadRequest> taken;
      {
        const std::lock_guard lock(mutex_);
        if (stop_ && in_flight == 0 && queue_.empty()) return;
        while (in_flight + static_cast<int32_t>(taken.size()) < depth_ && !queue_.empty()) {
          taken.push_back(std::move(queue_.front()));
          queue_.pop_front();
        }
      }
      for (ReadRequest& request : taken) in_flight += Start(std::move(request)) ? 1 : 0;
      // Requests that ended at once may have left nothing to wait for.
      if (!taken.empty() && in_flight == 0) continue;
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        auto* request = static_cast<ReadRequest*>(io_uring_cqe_get_data(completion));
        const int32_t result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
        if (request == nullptr) {
          ArmEvent();
          continue;
        }
        --in_flight;
        Finish(std::unique_ptr<ReadRequest>(request), result);
      }
    }
  }

  void ArmEvent() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read(entry, event_, &event_count_, sizeof(event_count_), 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  // False when the request ended at once.
  bool Start(ReadRequest request) {
    if (const Status opened = OpenFor(&request); !opened.ok()) {
      request.done(opened);
      return false;
    }
    // A file without a descriptor is not the kernel's to read.
    if (request.file->descriptor() < 0) {
      ReadHere(std::move(request));
      return false;
    }
    auto* owned = new ReadRequest(std::move(request));  // comes back with its completion
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read(entry, owned->file->descriptor(), owned->into.data(),
                       static_cast<unsigned>(owned->into.size()),
                       static_cast<uint64_t>(owned->offset));
    io_uring_sqe_set_data(entry, owned);
    return true;
  }

  static void Finish(std::unique_ptr<ReadRequest> request, int32_t result) {
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
      request->done(Unavailable(fmt::format("read: {}", std::strerror(-result))));
      return;
    }
    const auto read = static_cast<size_t>(result < 0 ? 0 : result);
    if (read == request->into.size()) return request->done(read);
    // Interrupted or short: the plain call finishes it, or finds the end of the file.
    const Result<size_t> rest = request->file->ReadAt(request->into.subspan(read),
                                                      request->offset + static_cast<int64_t>(read));
    request->done(rest.ok() ? Result<size_t>(read + *rest) : rest);
  }

  const int32_t depth_;
  const int event_;
  uint64_t event_count_ = 0;
  io_uring ring_{};
  std::mutex mutex_;
  std::deque<ReadRequest> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ReadBackend>> MakeUringReads(int32_t depth) {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) return Unsupported("io_uring: no event descriptor");
  auto reads = std::make_unique<UringReads>(depth, event);
  DI_RETURN_IF_ERROR(reads->Start());
  return std::unique_ptr<ReadBackend>(std::move(reads));
}

}  // namespace deepinfer
