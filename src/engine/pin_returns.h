// Pins of blocks that other threads read: given out by the engine thread, given back from anywhere.
// Thread rule: Pin and TakeReturned on the engine thread, the end of a pin on any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/delivery.h"

namespace deepinfer {

class PinReturns : public std::enable_shared_from_this<PinReturns> {
 public:
  explicit PinReturns(std::shared_ptr<WakeUp> wake) : wake_(std::move(wake)) {}

  // Blocks that the caller has pinned; they come back when the last copy is gone.
  std::shared_ptr<void> Pin(std::vector<int32_t> blocks) {
    {
      const std::lock_guard lock(mutex_);
      ++num_out_;
    }
    auto give_back = [self = shared_from_this(), blocks = std::move(blocks)](void*) {
      {
        const std::lock_guard lock(self->mutex_);
        self->returned_.insert(self->returned_.end(), blocks.begin(), blocks.end());
        --self->num_out_;
      }
      self->wake_->Wake();
    };
    // Not null, so that it counts its owners.
    return {this, std::move(give_back)};
  }

  std::vector<int32_t> TakeReturned() {
    const std::lock_guard lock(mutex_);
    return std::exchange(returned_, {});
  }

  bool none_out() const {
    const std::lock_guard lock(mutex_);
    return num_out_ == 0;
  }

 private:
  const std::shared_ptr<WakeUp> wake_;
  mutable std::mutex mutex_;
  std::vector<int32_t> returned_;
  int64_t num_out_ = 0;
};

}  // namespace deepinfer
