#include "economics/ledger_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <random>
#include <utility>

#include "base/line_appender.h"
#include "base/log.h"
#include "base/utc_clock.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace {

LedgerWriterOptions Completed(LedgerWriterOptions options) {
  if (!options.utc_now_us) options.utc_now_us = UtcNow<std::chrono::microseconds>;
  return options;
}

}  // namespace

// What the thread works on; it goes with the thread where a write hangs.
struct LedgerWriter::Shared {
  explicit Shared(LedgerWriterOptions opt)
      : options(std::move(opt)),
        process_name(fmt::format("{}-{:08x}", getpid(), std::random_device()())) {}
  ~Shared() {
    if (fd >= 0) close(fd);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void Loop();
  void Write(const std::deque<std::string>& lines);
  // The file of this hour; false when it cannot be opened.
  bool OpenFile();

  const LedgerWriterOptions options;
  const std::string process_name;  // part of file names: unique among all processes

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> queue;  // under mutex
  bool stopping = false;          // under mutex
  bool writing = false;           // under mutex
  bool given_up = false;          // a flush waited in vain; under mutex

  // The thread only.
  int fd = -1;
  std::string open_hour;
  LineAppender file;
  bool told = false;  // that lines were lost

  std::atomic<int64_t> num_written{0};
  std::atomic<int64_t> num_dropped{0};
};

Result<std::unique_ptr<LedgerWriter>> LedgerWriter::Open(LedgerWriterOptions options) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (access(options.folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidRequest("ledger folder " + options.folder + ": " + std::strerror(errno));
  }
  return std::unique_ptr<LedgerWriter>(new LedgerWriter(Completed(std::move(options))));
}

LedgerWriter::LedgerWriter(LedgerWriterOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))),
      thread_([shared = shared_] { shared->Loop(); }) {}

LedgerWriter::~LedgerWriter() {
  bool hangs = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    hangs = shared_->given_up && shared_->writing;
  }
  shared_->changed.notify_all();
  if (hangs) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void LedgerWriter::Append(std::string line) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->queue.size() >= shared_->options.max_queued_lines) {
      shared_->num_dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    shared_->queue.push_back(std::move(line));
  }
  shared_->changed.notify_all();
}

bool LedgerWriter::Flush(std::chrono::steady_clock::time_point deadline) {
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (shared.changed.wait_until(lock, deadline,
                                [&] { return shared.queue.empty() && !shared.writing; })) {
    return true;
  }
  shared.num_dropped.fetch_add(std::ssize(shared.queue), std::memory_order_relaxed);
  shared.queue.clear();
  shared.given_up = true;
  return false;
}

int64_t LedgerWriter::num_written() const {
  return shared_->num_written.load(std::memory_order_relaxed);
}

int64_t LedgerWriter::num_dropped() const {
  return shared_->num_dropped.load(std::memory_order_relaxed);
}

void LedgerWriter::Shared::Loop() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stopping || !queue.empty(); });
    if (queue.empty()) return;
    std::deque<std::string> lines;
    lines.swap(queue);
    writing = true;
    lock.unlock();
    Write(lines);
    lock.lock();
    writing = false;
    changed.notify_all();
  }
}

void LedgerWriter::Shared::Write(const std::deque<std::string>& lines) {
  int64_t dropped = 0;
  const bool is_open = OpenFile();
  for (const std::string& line : lines) {
    if (!is_open || !file.Append(fd, line)) ++dropped;
  }
  // The machine may lose power: what one wake-up wrote goes to the device together.
  int reason = errno;
  if (is_open && fdatasync(fd) != 0) {
    reason = errno;
    dropped = std::ssize(lines);
  }
  num_written.fetch_add(std::ssize(lines) - dropped, std::memory_order_relaxed);
  if (dropped == 0) return;
  num_dropped.fetch_add(dropped, std::memory_order_relaxed);
  if (std::exchange(told, true)) return;
  {
    // The process may be past the end of its log.
    const std::lock_guard lock(mutex);
    if (given_up) return;
  }
  Log(LogLevel::kError, "ledger.dropped",
      {{"folder", options.folder}, {"lines", dropped}, {"reason", std::strerror(reason)}});
}

bool LedgerWriter::Shared::OpenFile() {
  std::string hour = UtcHourName(options.utc_now_us());
  if (fd >= 0 && hour == open_hour) return true;
  if (fd >= 0) close(fd);
  const std::string path = fmt::format("{}/ledger-{}-{}.jsonl", options.folder, hour, process_name);
  fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  open_hour = std::move(hour);
  file.Reset();
  return fd >= 0;
}

}  // namespace deepinfer
