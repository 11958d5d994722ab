// A clock that stands still until a test moves it, with a hook that runs on the reading thread.
// What the hook reads itself calls it no more. Thread rule: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace deepinfer {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_us = 1'000'000) : now_us_(now_us) {}

  int64_t NowUs() const override {
    thread_local bool in_hook = false;
    if (has_hook_.load() && !in_hook) {
      in_hook = true;
      if (const auto hook = Hook()) (*hook)();
      in_hook = false;
    }
    return now_us_.load();
  }
  void Advance(int64_t us) { now_us_.fetch_add(us); }
  // An empty hook takes the last one away; a call of it may still be running.
  void OnRead(std::function<void()> hook) {
    const std::lock_guard lock(mutex_);
    on_read_ = hook ? std::make_shared<const std::function<void()>>(std::move(hook)) : nullptr;
    has_hook_ = on_read_ != nullptr;
  }

 private:
  std::shared_ptr<const std::function<void()>> Hook() const {
    const std::lock_guard lock(mutex_);
    return on_read_;
  }

  std::atomic<int64_t> now_us_;
  std::atomic<bool> has_hook_{false};
  // Not an atomic pointer: GCC 12 releases the lock inside its load without ordering, which
  // ThreadSanitizer reports as the race it is.
  mutable std::mutex mutex_;
  std::shared_ptr<const std::function<void()>> on_read_;
};

}  // namespace deepinfer
