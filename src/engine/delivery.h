// Back-pressure of one request: how many of its events are still with the receiver.
// Thread rule: counters are atomic; Take on the engine thread, credits die on any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

namespace deepinfer {

// Events a receiver may hold before its sequence is no longer planned: about three seconds of
// tokens at reading speed, small enough that a dead client holds little.
inline constexpr int32_t kDeliveryWindow = 64;

// Something that lets the engine thread look again; shared because credits may outlive the engine.
class WakeUp {
 public:
  virtual ~WakeUp() = default;
  virtual void Wake() = 0;
};

class DeliveryWindow : public std::enable_shared_from_this<DeliveryWindow> {
 public:
  explicit DeliveryWindow(std::shared_ptr<WakeUp> wake_up) : wake_up_(std::move(wake_up)) {}

  bool full() const { return outstanding_.load(std::memory_order_acquire) >= kDeliveryWindow; }
  int32_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  // One credit, given back when the last copy of the pointer dies.
  std::shared_ptr<void> Take() {
    outstanding_.fetch_add(1, std::memory_order_acq_rel);
    auto self = shared_from_this();
    return std::shared_ptr<void>(this, [self](void*) {
      // Only the step below the limit can have kept the sequence waiting.
      if (self->outstanding_.fetch_sub(1, std::memory_order_acq_rel) == kDeliveryWindow) {
        self->wake_up_->Wake();
      }
    });
  }

 private:
  std::shared_ptr<WakeUp> wake_up_;
  std::atomic<int32_t> outstanding_{0};
};

}  // namespace deepinfer
