// Where a model load stands; written by the loading thread, read by /health and the progress bar.
// Thread rule: one writer, any readers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace deepinfer {

enum class LoadPhase : unsigned char { kStarting, kTokenizer, kWeights, kWarmup, kReady, kFailed };

std::string_view LoadPhaseName(LoadPhase phase);

class LoadProgress {
 public:
  // done and total count bytes of the phase; total 0 means unknown.
  void Set(LoadPhase phase, uint64_t done, uint64_t total) {
    done_.store(done, std::memory_order_relaxed);
    total_.store(total, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_release);
  }
  LoadPhase phase() const { return phase_.load(std::memory_order_acquire); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  uint64_t total() const { return total_.load(std::memory_order_relaxed); }

 private:
  std::atomic<LoadPhase> phase_{LoadPhase::kStarting};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> total_{0};
};

}  // namespace deepinfer
