// Waits of a test for other threads. Every one has a deadline, so that a hang ends as a failure
// that says what did not come. Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace deepinfer {

// Far beyond any test: only a hang lasts as long, on a loaded machine and under a sanitizer too.
inline constexpr std::chrono::seconds kTestDeadline{180};

// Ends the process: what the test would destroy on its way out is still in use by what hangs.
[[noreturn]] inline void GiveUpWaiting(const char* for_what) {
  std::fprintf(stderr, "gave up waiting for %s\n", for_what);
  std::abort();
}

// lock is held on entry and on return.
template <typename Predicate>
void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
               const char* for_what, Predicate is_there) {
  if (!changed.wait_for(lock, kTestDeadline, is_there)) GiveUpWaiting(for_what);
}

// Without a notification: looks again and again.
template <typename Predicate>
void SpinUntil(const char* for_what, Predicate is_there) {
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  while (!is_there()) {
    if (std::chrono::steady_clock::now() > deadline) GiveUpWaiting(for_what);
    std::this_thread::yield();
  }
}

}  // namespace deepinfer
