#include "economics/ledger_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "base/log.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace {

int64_t SystemUtcUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

LedgerWriterOptions Completed(LedgerWriterOptions options) {
  if (!options.utc_now_us) options.utc_now_us = SystemUtcUs;
  return options;
}

}  // namespace

Result<std::unique_ptr<LedgerWriter>> LedgerWriter::Open(LedgerWriterOptions options) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (access(options.folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidRequest("ledger folder " + options.folder + ": " + std::strerror(errno));
  }
  return std::unique_ptr<LedgerWriter>(new LedgerWriter(Completed(std::move(options))));
}

LedgerWriter::LedgerWriter(LedgerWriterOptions options)
    : options_(std::move(options)),
      process_name_(fmt::format("{}-{:08x}", getpid(), std::random_device()())),
      thread_([this] { Loop(); }) {}

LedgerWriter::~LedgerWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (fd_ >= 0) close(fd_);
}

void LedgerWriter::Append(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= options_.max_queued_lines) {
      num_dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    queue_.push_back(std::move(line));
  }
  changed_.notify_all();
}

bool LedgerWriter::Flush(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, deadline, [this] { return queue_.empty() && !writing_; })) {
    return true;
  }
  num_dropped_.fetch_add(std::ssize(queue_), std::memory_order_relaxed);
  queue_.clear();
  return false;
}

void LedgerWriter::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::deque<std::string> lines;
    lines.swap(queue_);
    writing_ = true;
    lock.unlock();
    Write(lines);
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

void LedgerWriter::Write(const std::deque<std::string>& lines) {
  int64_t dropped = 0;
  const bool is_open = OpenFile();
  for (const std::string& line : lines) {
    if (!is_open || !WriteLine(line)) ++dropped;
  }
  // The machine may lose power: what one wake-up wrote goes to the device together.
  int reason = errno;
  if (is_open && fdatasync(fd_) != 0) {
    reason = errno;
    dropped = std::ssize(lines);
  }
  num_written_.fetch_add(std::ssize(lines) - dropped, std::memory_order_relaxed);
  if (dropped == 0) return;
  num_dropped_.fetch_add(dropped, std::memory_order_relaxed);
  if (std::exchange(told_, true)) return;
  Log(LogLevel::kError, "ledger.dropped",
      {{"folder", options_.folder}, {"lines", dropped}, {"reason", std::strerror(reason)}});
}

bool LedgerWriter::WriteLine(const std::string& line) {
  const std::string bytes = (has_torn_line_ ? "\n" : "") + line + "\n";
  const off_t begin = lseek(fd_, 0, SEEK_END);
  const ssize_t written = write(fd_, bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) {
    has_torn_line_ = false;
    return true;
  }
  const int reason = written < 0 ? errno : ENOSPC;
  // No part of a line stays; where that fails too the next one starts on a line of its own.
  if (written > 0 && ftruncate(fd_, begin) != 0) has_torn_line_ = true;
  errno = reason;
  return false;
}

bool LedgerWriter::OpenFile() {
  std::string hour = UtcHourName(options_.utc_now_us());
  if (fd_ >= 0 && hour == open_hour_) return true;
  if (fd_ >= 0) close(fd_);
  const std::string path =
      fmt::format("{}/ledger-{}-{}.jsonl", options_.folder, hour, process_name_);
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  open_hour_ = std::move(hour);
  has_torn_line_ = false;
  return fd_ >= 0;
}

}  // namespace deepinfer
