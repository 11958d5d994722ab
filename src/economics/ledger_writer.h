// Appends ledger lines to files of a folder, one per process and hour, on a thread of its own. A
// line is written whole or not at all, whatever happens to the process; what cannot be written is
// dropped and counted (economics.md §1).
// Thread rule: any thread. Owner: the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  // Writes what is queued; behind a Flush that failed it leaves a write that hangs to itself.
  ~LedgerWriter();
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  // line: without a newline. Never blocks; a full queue drops it.
  void Append(std::string line);

  // Waits until all lines so far are written or dropped; at the deadline drops those that no write
  // has begun with, and is false.
  bool Flush(std::chrono::steady_clock::time_point deadline);

  int64_t num_written() const;
  int64_t num_dropped() const;

 private:
  struct Shared;

  explicit LedgerWriter(LedgerWriterOptions options);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace deepinfer
