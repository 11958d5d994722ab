// A clock that stands still until a test moves it, with a hook that runs on the reading thread.
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace deepinfer {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_us = 1'000'000) : now_us_(now_us) {}

  int64_t NowUs() const override {
    if (const auto hook = on_read_.load()) (*hook)();
    return now_us_.load();
  }
  void Advance(int64_t us) { now_us_.fetch_add(us); }
  // An empty hook takes the last one away; a call of it may still be running.
  void OnRead(std::function<void()> hook) {
    on_read_ = hook ? std::make_shared<const std::function<void()>>(std::move(hook)) : nullptr;
  }

 private:
  std::atomic<int64_t> now_us_;
  std::atomic<std::shared_ptr<const std::function<void()>>> on_read_;
};

}  // namespace deepinfer
