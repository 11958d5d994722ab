// A clock that stands still until a test moves it, with a hook that runs on the reading thread.
// Thread rule: any thread; set the hook before the readers start.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"

namespace deepinfer {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_us = 1'000'000) : now_us_(now_us) {}

  int64_t NowUs() const override {
    if (on_read_) on_read_();
    return now_us_.load();
  }
  void Advance(int64_t us) { now_us_.fetch_add(us); }
  void OnRead(std::function<void()> hook) { on_read_ = std::move(hook); }

 private:
  std::atomic<int64_t> now_us_;
  std::function<void()> on_read_;
};

}  // namespace deepinfer
