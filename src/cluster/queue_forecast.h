// How long a new request would wait for its turn, from how fast the queue moved while requests were
// waiting: a rate measured without a queue says how fast requests come, not how fast they go.
// Thread rule: one caller at a time. Owner: Gateway.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

namespace deepinfer {

// One worker, or sums over workers, at one time.
struct QueueSnapshot {
  int32_t waiting = 0;
  int64_t waiting_prompt_tokens = 0;
  int64_t started = 0;       // requests that left the queue, since the start
  int64_t prefill_rows = 0;  // prompt rows run, since the start
};

// The queue of one process of a worker.
struct WorkerQueue {
  uint64_t incarnation = 0;  // 0: it has not told yet what it has done
  QueueSnapshot now;
};

// Sums over workers that come and go: what one has done stays in the sum when it leaves, and what
// it did before it came is not counted.
class QueueSum {
 public:
  QueueSnapshot Add(std::span<const WorkerQueue> workers);

 private:
  struct Last {
    QueueSnapshot queue;
    uint64_t round = 0;  // of Add
  };
  std::unordered_map<uint64_t, Last> last_;
  uint64_t round_ = 0;
  int64_t started_ = 0;
  int64_t prefill_rows_ = 0;
};

class QueueForecast {
 public:
  // Takes a snapshot in; those that follow the last one closely are skipped.
  void Observe(int64_t now_us, const QueueSnapshot& now);

  // Seconds behind the queue of the last snapshot; 0 without a queue, nothing while it moved for
  // too short a time to tell.
  std::optional<double> WaitSeconds(const QueueSnapshot& now) const;

 private:
  std::optional<int64_t> last_us_;
  QueueSnapshot last_;
  // Decayed sums over the times with a queue.
  double busy_s_ = 0;
  double started_ = 0;
  double prefill_rows_ = 0;
};

}  // namespace deepinfer
