// Tells whether an engine gets on: a thread of its own looks at what the engine thread last noted.
// An engine hangs while it has work and no step ends for 5 s, and while its thread does not come
// back from one turn of its loop for so long.
// Thread rule: NoteTurn and NoteStep on the engine thread, healthy on any. Owner: Engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace deepinfer {

class Watchdog {
 public:
  // No step of a working machine takes this long.
  static constexpr int64_t kLimitUs = 5'000'000;

  // Called once for every time the engine hangs, on the watchdog's thread: the cause, and for how
  // long nothing has happened.
  using Report = std::function<void(std::string_view cause, int64_t still_us)>;

  // clock is borrowed.
  Watchdog(const Clock* clock, Report report);
  ~Watchdog();

  // Begins to look, several times a second. Without a thread to be had nobody looks, and the engine
  // counts as healthy.
  void Start();

  // Between steps: whether the engine waits for the end of a step, or should have one to run.
  void NoteTurn(bool has_work);
  // A step ended.
  void NoteStep();

  bool healthy() const { return healthy_.load(std::memory_order_acquire); }

  // One look. It takes two that find the same thing overdue to call an engine hanging: a process
  // that got no processor for long, or whose machine slept, gets on by itself.
  // Thread rule: the watchdog's thread, or a test that did not start it.
  void Look();

 private:
  // What has been the same for too long.
  struct Overdue {
    std::string_view cause;
    int64_t since_us = 0;

    bool operator==(const Overdue&) const = default;
  };

  std::optional<Overdue> FindOverdue(int64_t now_us) const;
  void Loop();

  const Clock* const clock_;
  const Report report_;
  std::atomic<int64_t> turned_us_;
  std::atomic<int64_t> waits_since_us_{0};  // for the end of a step; 0: for none
  std::atomic<bool> healthy_{true};
  std::optional<Overdue> last_;  // of the last look

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
