// Appends ledger lines to files of a folder, one per process and hour, on a thread of its own. A
// line is written whole or not at all, whatever happens to the process; what cannot be written is
// dropped and counted (economics.md §1).
// Thread rule: any thread. Owner: the server.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"

namespace deepinfer {

struct LedgerWriterOptions {
  std::string folder;
  size_t max_queued_lines = 65536;
  // Microseconds since 1970; names the hour of a file. The system's clock by default.
  std::function<int64_t()> utc_now_us{};
};

class LedgerWriter {
 public:
  // Makes the folder. invalid_request when it cannot be written.
  static Result<std::unique_ptr<LedgerWriter>> Open(LedgerWriterOptions options);
  // Writes what is queued.
  ~LedgerWriter();
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  // line: without a newline. Never blocks; a full queue drops it.
  void Append(std::string line);

  // Waits until all lines so far are written or dropped; at the deadline drops those that no write
  // has begun with, and is false.
  bool Flush(std::chrono::steady_clock::time_point deadline);

  int64_t num_written() const { return num_written_.load(std::memory_order_relaxed); }
  int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }

 private:
  explicit LedgerWriter(LedgerWriterOptions options);
  void Loop();
  void Write(const std::deque<std::string>& lines);
  bool WriteLine(const std::string& line);
  // The file of this hour; false when it cannot be opened.
  bool OpenFile();

  const LedgerWriterOptions options_;
  const std::string process_name_;  // part of file names: unique among all processes

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;  // under mutex_
  bool stopping_ = false;          // under mutex_
  bool writing_ = false;           // under mutex_

  // The thread only.
  int fd_ = -1;
  std::string open_hour_;
  bool has_torn_line_ = false;
  bool told_ = false;  // that lines were lost; owned by the thread

  std::atomic<int64_t> num_written_{0};
  std::atomic<int64_t> num_dropped_{0};
  std::thread thread_;
};

}  // namespace deepinfer
