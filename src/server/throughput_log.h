// The periodic log line of a working server: speed, queue, cache (docs/operations.md).
// Thread rule: MakeThroughput is pure; ThroughputLog has a thread of its own.
// Owner: ThroughputLog belongs to ServerState's owner and stops before the gateway is destroyed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/statistics.h"

namespace deepinfer {

struct Throughput {
  double prompt_tokens_per_s = 0;  // computed
  double cached_tokens_per_s = 0;  // prompt tokens found in the cache
  double generation_tokens_per_s = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  double kv_usage = 0;              // 0 to 1
  double hit_share = 0;             // of prompt tokens, in the interval
  double mean_accepted_drafts = 0;  // per verification, in the interval
  double gflops_per_s = 0;          // of the model, drafts aside
};

// What happened between two states of all engines; nothing when the engines did nothing.
std::optional<Throughput> MakeThroughput(const std::vector<EngineStatistics>& before,
                                         const std::vector<EngineStatistics>& after,
                                         double seconds);

class ThroughputLog {
 public:
  using Source = std::function<std::vector<EngineStatistics>()>;

  // Logs one line per interval with work in it. source is called on the log's thread.
  ThroughputLog(std::chrono::milliseconds interval, Source source);
  ~ThroughputLog();  // stops

 private:
  void Loop(std::chrono::milliseconds interval);

  Source source_;
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace deepinfer
