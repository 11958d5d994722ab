// SIGINT and SIGTERM as data instead of interruptions.
// Thread rule: made and used on the main thread, before other threads start.
#pragma once

#include <signal.h>

#include <chrono>

namespace deepinfer {

// Blocks the stop signals in this thread and every thread started later.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Waits for the next one; false on time-out.
  bool WaitFor(std::chrono::milliseconds timeout) {
    const timespec t{static_cast<time_t>(timeout.count() / 1000),
                     static_cast<long>(timeout.count() % 1000) * 1000000};
    return sigtimedwait(&set_, nullptr, &t) > 0;
  }

 private:
  sigset_t set_;
};

}  // namespace deepinfer
