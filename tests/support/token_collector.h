// Receives the events of one request and checks their order as they come.
// Thread rule: Sink() is called by the engine, everything else by the test thread. The collector
// outlives its sinks.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/request.h"
#include "support/wait_until.h"

namespace deepinfer {

class TokenCollector {
 public:
  // on_event runs on the engine's thread after the event was recorded.
  TokenSink Sink(std::function<void(const TokenEvent&)> on_event = {}) {
    return [this, on_event = std::move(on_event)](TokenEvent event) {
      {
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(done_) << "an event after the last one";
        EXPECT_EQ(event.start_index, static_cast<int32_t>(ids_.size()));
        ids_.insert(ids_.end(), event.ids.begin(), event.ids.end());
        logprobs_.insert(logprobs_.end(), event.logprobs.begin(), event.logprobs.end());
        if (!event.prompt_logprobs.empty()) {
          EXPECT_EQ(num_events_, 0) << "prompt log-probabilities come with the first event";
          prompt_logprobs_ = event.prompt_logprobs;
        }
        ++num_events_;
        last_ = event;
        done_ = event.finish != FinishReason::kNone;
        // Under the lock, so that the waiting test cannot destroy the collector too early.
        wake_.notify_all();
      }
      if (on_event) on_event(event);
    };
  }

  // The last event.
  const TokenEvent& Wait() {
    std::unique_lock lock(mutex_);
    WaitUntil(wake_, lock, "the last event of a request", [this] { return done_; });
    return last_;
  }
  void WaitForEvents(int count) {
    std::unique_lock lock(mutex_);
    WaitUntil(wake_, lock, "an event of a request", [&] { return num_events_ >= count; });
  }
  bool done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  // After Wait.
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<TokenLogprobs>& logprobs() const { return logprobs_; }
  const std::vector<TokenLogprobs>& prompt_logprobs() const { return prompt_logprobs_; }
  int num_events() const { return num_events_; }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<int32_t> ids_;
  std::vector<TokenLogprobs> logprobs_, prompt_logprobs_;
  TokenEvent last_;
  int num_events_ = 0;
  bool done_ = false;
};

}  // namespace deepinfer
