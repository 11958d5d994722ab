// How long a new request would wait for its turn, from how fast the queue moved while requests were
// waiting: a rate measured without a queue says how fast requests come, not how fast they go.
// Thread rule: one caller at a time. Owner: Gateway.
#pragma once

#include <cstdint>
#include <optional>

namespace deepinfer {

// Sums over workers at one time.
struct QueueSnapshot {
  int32_t waiting = 0;
  int64_t waiting_prompt_tokens = 0;
  int64_t started = 0;       // requests that left the queue, since the start
  int64_t prefill_rows = 0;  // prompt rows run, since the start
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
