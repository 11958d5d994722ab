#include "engine/watchdog.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"

namespace deepinfer {

namespace {

constexpr std::chrono::milliseconds kLookEvery{250};

}  // namespace

Watchdog::Watchdog(const Clock* clock, Report report)
    : clock_(clock), report_(std::move(report)), turned_us_(clock->NowUs()) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Start() {
  NoteTurn(false);
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    Log(LogLevel::kWarning, "engine.no_watchdog", {{"reason", error.what()}});
  }
}

void Watchdog::NoteTurn(bool has_work) {
  const int64_t now_us = clock_->NowUs();
  turned_us_.store(now_us, std::memory_order_relaxed);
  if (!has_work) {
    waits_since_us_.store(0, std::memory_order_relaxed);
  } else if (waits_since_us_.load(std::memory_order_relaxed) == 0) {
    waits_since_us_.store(now_us, std::memory_order_relaxed);
  }
}

void Watchdog::NoteStep() { waits_since_us_.store(clock_->NowUs(), std::memory_order_relaxed); }

std::optional<Watchdog::Overdue> Watchdog::FindOverdue(int64_t now_us) const {
  const int64_t waits_since_us = waits_since_us_.load(std::memory_order_relaxed);
  if (waits_since_us != 0 && now_us - waits_since_us >= kLimitUs) {
    return Overdue{"no step ends", waits_since_us};
  }
  const int64_t turned_us = turned_us_.load(std::memory_order_relaxed);
  if (now_us - turned_us >= kLimitUs) return Overdue{"the engine thread is held", turned_us};
  return std::nullopt;
}

void Watchdog::Look() {
  const int64_t now_us = clock_->NowUs();
  const std::optional<Overdue> overdue = FindOverdue(now_us);
  const bool hangs = overdue.has_value() && overdue == last_;
  last_ = overdue;
  if (overdue.has_value() && !hangs) return;
  if (hangs != healthy()) return;
  if (hangs) {
    // At once, as the report takes its time and the log may be what hangs.
    healthy_.store(false, std::memory_order_release);
    report_(overdue->cause, now_us - overdue->since_us);
  } else {
    Log(LogLevel::kInfo, "engine.goes_on");
    healthy_.store(true, std::memory_order_release);
  }
}

void Watchdog::Loop() {
  NameThread("watchdog");
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kLookEvery, [this] { return stop_; })) {
    lock.unlock();
    Look();
    lock.lock();
  }
}

}  // namespace deepinfer
