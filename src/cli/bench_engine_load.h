// Load on an engine of this process for `bench engine`: requests with random prompts, and a
// receiver that notes when their tokens came. Thread rule: main thread, except the sinks, which the
// engine calls.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace deepinfer {

// Share of the sorted values that is not above the result; 0 for no values.
double Percentile(std::vector<double> values, double share);

double Micros(std::chrono::steady_clock::duration d);

// Request number `number`: greedy, to its last token, of a prompt that no other shares.
EngineRequest RandomRequest(uint32_t number, int32_t vocab_size, int32_t prompt_len,
                            int32_t max_tokens);

// Takes the events of several requests and outlives them.
class LoadReceiver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  TokenSink Sink();

  // Until every request has so many tokens or ended; deadline when that takes too long.
  Status WaitForTokens(size_t of_each);
  Status WaitAll();

  // After WaitAll, in order of the sinks.
  const std::vector<std::vector<TimePoint>>& arrivals() const { return arrivals_; }
  const std::vector<TokenEvent>& last_events() const { return last_events_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TimePoint>> arrivals_;
  std::vector<TokenEvent> last_events_;  // in order of the ends
  size_t num_wanted_ = 0;                // tokens of a request that somebody waits for
  int running_ = 0;
};

}  // namespace deepinfer
