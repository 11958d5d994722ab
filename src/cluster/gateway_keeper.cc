// The thread of a gateway that serves its queue, finds workers for requests that lost theirs, and
// sweeps (docs/cluster.md §4).

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cluster/gateway.h"

namespace deepinfer {

namespace {

// Sweeps of workers, and how soon a request without a worker is tried again.
constexpr std::chrono::milliseconds kSweep{100};
// Between two looks for a worker with credit: workers hold enough to do until then, and reports
// come every tenth of a second.
constexpr std::chrono::milliseconds kQueueLook{10};

bool HasPassed(int64_t deadline_us, int64_t now_us) {
  return deadline_us != 0 && now_us >= deadline_us;
}

// Before its first token.
bool HasExpired(const EngineRequest& r, int64_t now_us) {
  return HasPassed(r.deadline_us, now_us) || HasPassed(r.queue_deadline_us, now_us) ||
         HasPassed(r.first_token_deadline_us, now_us);
}

}  // namespace

void Gateway::LookAtQueue() {
  if (queue_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    queue_changed_ = true;
  }
  changed_.notify_all();
}

void Gateway::Keep() {
  std::unique_lock lock(mutex_);
  auto next_sweep = std::chrono::steady_clock::now();
  while (!stop_) {
    const auto wait = queue_.empty() ? kSweep : kQueueLook;
    changed_.wait_for(lock, wait, [this] { return stop_ || !lost_.empty() || queue_changed_; });
    if (stop_) return;
    queue_changed_ = false;
    const bool any_lost = !lost_.empty();
    for (LivePtr& request : lost_) waiting_.push_back({std::move(request), clock_->NowUs()});
    lost_.clear();
    lock.unlock();
    const int64_t now_us = clock_->NowUs();
    const auto now = std::chrono::steady_clock::now();
    if (any_lost || now >= next_sweep) {
      next_sweep = now + kSweep;
      workers_.Sweep(now_us);
      prefixes_.Follow(*workers_.list());
      LookAtShares(now_us);
      RetryWaiting(now_us);
    }
    ServeQueue();
    lock.lock();
  }
}

void Gateway::LookAtShares(int64_t now_us) {
  {
    const std::lock_guard lock(mutex_);
    if (!shares_.IsDue(now_us)) return;
  }
  std::vector<BusyShares::WorkerTime> times;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    const EngineStatistics s = worker->Statistics();
    times.push_back({s.incarnation, worker->shared_info()->role, s.step_us});
  }
  const std::lock_guard lock(mutex_);
  shares_.Observe(now_us, times);
}

void Gateway::ServeQueue() {
  if (queue_.empty()) {
    no_worker_since_us_ = -1;
    return;
  }
  int64_t now_us = clock_->NowUs();
  const bool gives_up =
      no_worker_since_us_ >= 0 && now_us - no_worker_since_us_ > options_.recovery_us;
  for (const RequestQueue::Waiter& waiter : queue_.TakeEnded([&](const LiveRequest& r) {
         return gives_up || r.cancelled() || HasExpired(r.request(), now_us);
       })) {
    const EngineRequest& request = waiter.request->request();
    waiter.request->NoteWait(clock_->NowUs() - waiter.since_us);
    if (HasPassed(request.queue_deadline_us, now_us)) {
      End(waiter.request, FinishReason::kQueueTimeout,
          Unavailable("the request waited too long for its turn"));
    } else if (HasExpired(request, now_us)) {
      End(waiter.request, FinishReason::kDeadline,
          DeadlineExceeded("the deadline of the request passed"));
    } else {
      End(waiter.request, FinishReason::kError, Unavailable("no worker is in reach"));
    }
  }
  bool with_batch = true;
  while (const LivePtr next = queue_.Next(now_us, with_batch)) {
    const Router::Choice choice = router_.Place(*next, /*needs_credit=*/true);
    now_us = clock_->NowUs();
    const bool none = choice.placement.decode == nullptr && !choice.busy;
    if (!none) {
      no_worker_since_us_ = -1;
    } else if (no_worker_since_us_ < 0) {
      no_worker_since_us_ = now_us;
    }
    if (choice.placement.decode == nullptr) {
      // What comes after it needs a worker no less, but for what has more credit than batch work.
      if (!with_batch || next->request_class() != RequestClass::kBatch) return;
      with_batch = false;
      continue;
    }
    std::optional<RequestQueue::Entry> entry = queue_.Take(*next);
    if (!entry) continue;
    SendQueued(std::move(entry->first), choice, entry->cost);
    for (RequestQueue::Waiter& follower : entry->followers) {
      Router::Choice same{PlacementOfLeader(*follower.request), false, {}};
      if (same.placement.decode == nullptr) same.placement = choice.placement;
      const std::optional<Router::Cost> cost = CostOf(*follower.request);
      SendQueued(std::move(follower), same, cost);
    }
  }
}

void Gateway::SendQueued(RequestQueue::Waiter waiter, const Router::Choice& choice,
                         const std::optional<Router::Cost>& cost) {
  const LivePtr& request = waiter.request;
  const int64_t now_us = clock_->NowUs();
  request->NoteWait(now_us - waiter.since_us);
  const Status status = Send(request, choice);
  if (status.ok()) {
    queue_.Charge(request.get(), cost, now_us);
  } else if (status.code() == StatusCode::kUnavailable ||
             status.code() == StatusCode::kResourceExhausted) {
    waiting_.push_back({request, now_us});
  } else {
    End(request, FinishReason::kError, status);
  }
}

void Gateway::RetryWaiting(int64_t now_us) {
  std::erase_if(waiting_, [&](const Waiting& w) {
    LiveRequest& request = *w.request;
    if (request.cancelled()) {
      End(w.request, FinishReason::kCancelled, OkStatus());
      return true;
    }
    if (request.deadline_us() != 0 && now_us >= request.deadline_us()) {
      End(w.request, FinishReason::kDeadline,
          DeadlineExceeded("the deadline of the request passed"));
      return true;
    }
    if (request.num_attempts() >= static_cast<uint32_t>(options_.max_attempts)) {
      Log(LogLevel::kError, "request.quarantined",
          {{"request_id", request.id()}, {"attempts", int64_t{request.num_attempts()}}});
      End(w.request, FinishReason::kQuarantined,
          Unavailable("the request lost as many workers as it may"));
      return true;
    }
    const bool gives_up = now_us - w.since_us > options_.recovery_us;
    const Status status =
        gives_up ? Unavailable("the request lost its worker") : Dispatch(w.request);
    if (status.ok()) return true;
    const bool may_wait = status.code() == StatusCode::kUnavailable ||
                          status.code() == StatusCode::kResourceExhausted;
    if (may_wait && !gives_up) return false;
    End(w.request, FinishReason::kError, status);
    return true;
  });
}

}  // namespace deepinfer
