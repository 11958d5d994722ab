// Looks at the persistent store from time to time and says what an operator should know: its state
// changed, or much is written to it that nobody reads (docs/operations.md).
// Thread rule: one thread, the engine's. Owner: Engine.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "engine/statistics.h"

namespace deepinfer {

class KvStore;

// Blocks written and read since the start, by time; whether a day of writing was for nothing.
class WriteAlarm {
 public:
  // More than this was written within a day,
  static constexpr double kLeastWrittenBytes = 100e9;
  // and fewer blocks than this share of the written ones were read.
  static constexpr double kReadShare = 0.001;

  // Counts only grow. True while the alarm is on.
  bool Observe(int64_t now_us, int64_t written_blocks, int64_t read_blocks, int64_t block_bytes);

 private:
  struct Sample {
    int64_t time_us = 0;
    int64_t written_blocks = 0;
    int64_t read_blocks = 0;
  };
  std::deque<Sample> samples_;  // one an hour, the oldest a day old
};

class StoreWatch {
 public:
  // Called between steps; looks once a second. store may be null.
  void Look(const KvStore* store, int64_t now_us, EngineStatistics* statistics);

 private:
  int64_t looked_us_ = 0;
  std::string tier_state_;
  WriteAlarm alarm_;
};

}  // namespace deepinfer
