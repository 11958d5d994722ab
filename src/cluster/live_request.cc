#include "cluster/live_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace deepinfer {

std::optional<EngineRequest> LiveRequest::Begin(const Placement& placement) {
  const std::lock_guard lock(mutex_);
  if (ended_ || cancelled_) return std::nullopt;
  placement_ = placement;
  times_.reset();
  running_ = true;
  handed_off_ = false;
  EngineRequest request = request_;
  request.attempt = ++attempt_;
  if (++num_attempts_ > 1) request.branch_of.clear();
  if (ids_.empty()) return request;
  request.queue_deadline_us = request.first_token_deadline_us = 0;
  request.resume.emplace();
  request.resume->ids = ids_;
  request.resume->origin = origin_;
  request.resume->counters = counters_;
  return request;
}

void LiveRequest::Watch(const RouteTimes& times) {
  const std::lock_guard lock(mutex_);
  times_ = times;
}

void LiveRequest::Time(int64_t now_us, int64_t num_tokens, bool is_end, News* news) {
  if (!times_ || news == nullptr) return;
  news->first = times_->num_tokens == 0 && num_tokens > 0;
  news->end = is_end;
  if (news->first) {
    times_->first_us = now_us;
    times_->num_first = num_tokens;
  }
  if (num_tokens > 0) times_->last_us = now_us;
  times_->num_tokens += num_tokens;
  if (news->first || news->end) news->times = *times_;
  if (is_end) times_.reset();
}

void LiveRequest::Abandon(uint32_t attempt) {
  const std::lock_guard lock(mutex_);
  if (attempt != attempt_) return;
  running_ = false;
  placement_ = {};
}

void LiveRequest::Withdraw(uint32_t attempt) {
  Abandon(attempt);
  const std::lock_guard lock(mutex_);
  --num_attempts_;
}

bool LiveRequest::Trim(TokenEvent* event) const {
  const auto have = static_cast<int32_t>(ids_.size());
  if (event->ids.empty()) {
    event->start_index = have;
    return true;
  }
  if (event->start_index > have) return false;
  const auto known = std::min<std::ptrdiff_t>(have - event->start_index,
                                              static_cast<std::ptrdiff_t>(event->ids.size()));
  event->ids.erase(event->ids.begin(), event->ids.begin() + known);
  if (!event->logprobs.empty()) {
    event->logprobs.erase(event->logprobs.begin(), event->logprobs.begin() + known);
  }
  if (known > 0) event->prompt_logprobs.clear();
  event->start_index = have;
  return true;
}

LiveRequest::Outcome LiveRequest::Digest(uint32_t attempt, Leg leg, int64_t now_us,
                                         TokenEvent* event, News* news) {
  const std::lock_guard lock(mutex_);
  control_bytes_ += event->wire_bytes;
  // Of an attempt that was given up, or of a half that has nothing more to say.
  if (attempt != attempt_ || !running_) return Outcome::kStale;
  if (leg == Leg::kPrefill && handed_off_) return Outcome::kStale;
  if (event->finish == FinishReason::kHandedOff) {
    handed_off_ = true;
    return Outcome::kStale;
  }
  const StatusCode code = event->status.code();
  bool lost = event->finish == FinishReason::kError &&
              (code == StatusCode::kUnavailable ||
               (code == StatusCode::kResourceExhausted && ids_.empty()));
  if (lost && cancelled_) {
    lost = false;
    event->finish = FinishReason::kCancelled;
    event->status = OkStatus();
  }
  if (lost || !Trim(event)) {
    running_ = false;
    placement_ = {};
    return Outcome::kLost;
  }
  Time(now_us, std::ssize(event->ids), event->finish != FinishReason::kNone, news);
  ids_.insert(ids_.end(), event->ids.begin(), event->ids.end());
  if (event->counters.prompt_tokens > 0) {
    counters_ = event->counters;
    origin_ = event->origin;
  }
  event->counters = Account();
  if (event->finish == FinishReason::kNone) {
    // Without ids it tells that the grammar is compiled; the client hears that once.
    const bool is_news = !event->ids.empty() || (ids_.empty() && !compiled_);
    compiled_ = compiled_ || event->ids.empty();
    return is_news ? Outcome::kGoesOn : Outcome::kStale;
  }
  ended_ = true;
  running_ = false;
  placement_ = {};
  return Outcome::kEnded;
}

LiveRequest::Outcome LiveRequest::OnEvent(uint32_t attempt, Leg leg, TokenEvent event,
                                          int64_t now_us, const std::function<void()>& before_last,
                                          News* news) {
  const std::lock_guard order(order_mutex_);
  const Outcome outcome = Digest(attempt, leg, now_us, &event, news);
  if (outcome != Outcome::kGoesOn && outcome != Outcome::kEnded) return outcome;
  if (outcome == Outcome::kEnded) before_last();
  sink_(std::move(event));
  if (outcome == Outcome::kEnded) sink_ = nullptr;
  return outcome;
}

bool LiveRequest::End(FinishReason reason, Status status,
                      const std::function<void()>& before_last) {
  const std::lock_guard order(order_mutex_);
  TokenEvent last;
  {
    const std::lock_guard lock(mutex_);
    if (running_ || ended_) return false;
    ended_ = true;
    placement_ = {};
    last.start_index = static_cast<int32_t>(ids_.size());
    last.finish = cancelled_ ? FinishReason::kCancelled : reason;
    if (!cancelled_) last.status = std::move(status);
    last.counters = Account();
    last.counters.prompt_tokens = prompt_tokens();
  }
  before_last();
  sink_(std::move(last));
  sink_ = nullptr;
  return true;
}

RequestCounters LiveRequest::Account() const {
  RequestCounters account = counters_;
  account.queue_us += waited_us_;
  account.control_bytes = control_bytes_;
  return account;
}

void LiveRequest::NoteWait(int64_t wait_us) {
  const std::lock_guard lock(mutex_);
  waited_us_ += wait_us;
}

void LiveRequest::NoteCharge(const Charge& charge) {
  const std::lock_guard lock(mutex_);
  charge_ = charge;
}

LiveRequest::Charge LiveRequest::TakeCharge() {
  const std::lock_guard lock(mutex_);
  return std::exchange(charge_, {});
}

LiveRequest::Placement LiveRequest::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  return placement_;
}

void LiveRequest::LetGo() {
  Placement old;  // its end, outside of the lock
  const std::lock_guard lock(mutex_);
  std::swap(old, placement_);
}

LiveRequest::Placement LiveRequest::placement() const {
  const std::lock_guard lock(mutex_);
  return placement_;
}

uint32_t LiveRequest::num_attempts() const {
  const std::lock_guard lock(mutex_);
  return num_attempts_;
}

bool LiveRequest::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

int64_t LiveRequest::num_generated() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(ids_);
}

bool LiveRequest::started() const {
  const std::lock_guard lock(mutex_);
  return !ids_.empty();
}

}  // namespace deepinfer
