#include "integration/server/fake_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "support/wait_until.h"

namespace deepinfer::testing {
namespace {

constexpr std::chrono::seconds kPatience{10};

}  // namespace

// Credits may outlive the worker.
class FakeWorker::Waker final : public WakeUp {
 public:
  explicit Waker(FakeWorker* worker) : worker_(worker) {}

  void Wake() override {
    const std::lock_guard lock(mutex_);
    if (worker_ == nullptr) return;
    { const std::lock_guard worker_lock(worker_->mutex_); }
    worker_->changed_.notify_all();
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    worker_ = nullptr;
  }

 private:
  std::mutex mutex_;
  FakeWorker* worker_;
};

FakeWorker::FakeWorker(WorkerInfo info)
    : info_(std::move(info)), waker_(std::make_shared<Waker>(this)) {
  SetOutput({});
  thread_ = std::thread([this] { Loop(); });
}

FakeWorker::~FakeWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    submit_blocked_ = false;
  }
  changed_.notify_all();
  thread_.join();
  waker_->Detach();
}

void FakeWorker::SetOutput(std::vector<int32_t> ids, bool endless) {
  SetOutputOf([this, ids = std::move(ids), endless](const EngineRequest& request) {
    std::vector<int32_t> output;
    const auto limit = static_cast<size_t>(request.sampling.max_tokens);
    if (endless) {
      for (size_t i = 0; i < limit; ++i) output.push_back(ids[i % ids.size()]);
    } else {
      output = ids;
      output.push_back(info_.eos_token_id);
    }
    return output;
  });
}

void FakeWorker::SetOutputOf(std::function<std::vector<int32_t>(const EngineRequest&)> output) {
  std::lock_guard lock(mutex_);
  output_ = std::move(output);
}

void FakeWorker::SetCommit(int32_t tokens_per_step) {
  std::lock_guard lock(mutex_);
  commit_ = tokens_per_step;
}

void FakeWorker::SetCached(int64_t tokens) {
  std::lock_guard lock(mutex_);
  cached_ = tokens;
}

void FakeWorker::SetCacheWritten(int64_t tokens) {
  std::lock_guard lock(mutex_);
  cache_written_ = tokens;
}

void FakeWorker::SetStatistics(const EngineStatistics& statistics) {
  std::lock_guard lock(mutex_);
  statistics_ = statistics;
}

void FakeWorker::SetSubmitStatus(Status status) {
  std::lock_guard lock(mutex_);
  submit_status_ = std::move(status);
}

void FakeWorker::SetFailure(size_t after_tokens, Status status, FinishReason finish) {
  std::lock_guard lock(mutex_);
  failure_after_ = after_tokens;
  failure_ = std::move(status);
  failure_finish_ = finish;
}

void FakeWorker::SetNeverFinish(bool never_finish) {
  std::lock_guard lock(mutex_);
  never_finish_ = never_finish;
}

void FakeWorker::Hold() {
  std::lock_guard lock(mutex_);
  steps_allowed_ = 0;
}

void FakeWorker::Release() {
  std::lock_guard lock(mutex_);
  steps_allowed_ = -1;
  changed_.notify_all();
}

void FakeWorker::Step() {
  std::lock_guard lock(mutex_);
  ++steps_allowed_;
  changed_.notify_all();
}

void FakeWorker::BlockSubmit() {
  std::lock_guard lock(mutex_);
  submit_blocked_ = true;
}

void FakeWorker::UnblockSubmit() {
  std::lock_guard lock(mutex_);
  submit_blocked_ = false;
  changed_.notify_all();
}

std::vector<EngineRequest> FakeWorker::submitted() const {
  std::lock_guard lock(mutex_);
  return submitted_;
}

std::vector<std::string> FakeWorker::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool FakeWorker::WaitSubmitted(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return submitted_.size() >= count; });
}

bool FakeWorker::WaitCancelled(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return cancelled_.size() >= count; });
}

bool FakeWorker::WaitIdle() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return live_.empty(); });
}

bool FakeWorker::WaitStalled() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] {
    return std::any_of(live_.begin(), live_.end(),
                       [](const auto& entry) { return entry.second.window->full(); });
  });
}

int64_t FakeWorker::emitted() const {
  std::lock_guard lock(mutex_);
  return emitted_;
}

Status FakeWorker::Submit(EngineRequest request, TokenSink sink) {
  std::unique_lock lock(mutex_);
  submitted_.push_back(request);
  changed_.notify_all();
  WaitUntil(changed_, lock, "leave to submit", [&] { return !submit_blocked_; });
  if (draining_) return Unavailable("draining");
  if (!submit_status_.ok()) return submit_status_;
  Live live;
  live.output = request.forced_ids.empty() ? output_(request) : request.forced_ids;
  if (!request.forced_ids.empty()) live.output.push_back(info_.eos_token_id);
  live.sink = std::move(sink);
  live.window = std::make_shared<DeliveryWindow>(waker_);
  live.request = std::move(request);
  std::string id = live.request.request_id;
  if (!live_.emplace(std::move(id), std::move(live)).second) return Internal("id is live already");
  changed_.notify_all();
  return OkStatus();
}

void FakeWorker::Cancel(std::string_view request_id) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(request_id);
  if (found == live_.end() || std::exchange(found->second.cancelled, true)) return;
  cancelled_.emplace_back(request_id);
  changed_.notify_all();
}

LoadReport FakeWorker::Load() const {
  std::lock_guard lock(mutex_);
  LoadReport load;
  load.running = static_cast<int32_t>(live_.size());
  load.waiting = statistics_.waiting;
  load.kv_capacity_tokens = 1000;
  load.draining = draining_;
  return load;
}

EngineStatistics FakeWorker::Statistics() const {
  std::lock_guard lock(mutex_);
  EngineStatistics statistics = statistics_;
  statistics.running = static_cast<int32_t>(live_.size());
  statistics.kv_capacity_tokens = 1000;
  return statistics;
}

Status FakeWorker::Profile(int32_t num_steps, int64_t, ProfileSink done) {
  std::vector<StepTrace> steps;
  for (int64_t i = 0; i < num_steps; ++i) {
    const int64_t at = 5'000'000 + i * 10'000;
    steps.push_back({.number = i,
                     .num_sequences = 2,
                     .decode_rows = 2,
                     .predicted_us = 9'000,
                     .plan_us = at,
                     .launched_us = at + 20,
                     .begin_us = at + 30,
                     .copied_us = at + 31,
                     .computed_us = at + 9'000,
                     .end_us = at + 9'100,
                     .process_us = at + 9'110,
                     .processed_us = at + 9'150});
  }
  done(std::move(steps));
  return OkStatus();
}

void FakeWorker::Drain(int64_t deadline_us) {
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait_until(lock, deadline, [&] { return live_.empty(); });
  for (auto& [id, live] : live_) live.cancelled = true;
  changed_.notify_all();
  WaitUntil(changed_, lock, "the end of cancelled requests", [&] { return live_.empty(); });
}

bool FakeWorker::HasCancelled() const {
  return std::any_of(live_.begin(), live_.end(),
                     [](const auto& entry) { return entry.second.cancelled; });
}

bool FakeWorker::IsRunnable(const Live& live) const {
  if (live.window->full()) return false;
  return !never_finish_ || live.emitted < static_cast<size_t>(live.request.sampling.max_tokens) - 1;
}

bool FakeWorker::HasRunnable() const {
  return std::any_of(live_.begin(), live_.end(),
                     [&](const auto& entry) { return IsRunnable(entry.second); });
}

void FakeWorker::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stopping_ || HasCancelled() || (steps_allowed_ != 0 && HasRunnable());
    });
    if (stopping_ && live_.empty()) return;
    const bool may_step = steps_allowed_ != 0;
    if (steps_allowed_ > 0) --steps_allowed_;
    std::vector<std::pair<TokenSink, TokenEvent>> due;
    for (auto it = live_.begin(); it != live_.end();) {
      if (stopping_) it->second.cancelled = true;
      if (!it->second.cancelled && !(may_step && IsRunnable(it->second))) {
        ++it;
        continue;
      }
      due.emplace_back(it->second.sink, NextEvent(it->second));
      it = due.back().second.finish == FinishReason::kNone ? std::next(it) : live_.erase(it);
    }
    lock.unlock();
    for (auto& [sink, event] : due) sink(std::move(event));
    due.clear();
    lock.lock();
    changed_.notify_all();
  }
}

TokenLogprobs FakeWorker::LogprobsOf(int32_t id, int32_t num_top) const {
  TokenLogprobs logprobs;
  logprobs.logprob = -0.5f - static_cast<float>(id % 7);
  for (int32_t k = 0; k < num_top; ++k) {
    logprobs.top.emplace_back((id + k) % info_.vocab_size,
                              logprobs.logprob - static_cast<float>(k));
  }
  return logprobs;
}

TokenEvent FakeWorker::NextEvent(Live& live) {
  const SamplingParams& sampling = live.request.sampling;
  TokenEvent event;
  event.start_index = static_cast<int32_t>(live.emitted);
  const auto limit = std::min(live.output.size(), static_cast<size_t>(sampling.max_tokens));
  size_t take = commit_ == 0 ? limit : std::min(limit, live.emitted + static_cast<size_t>(commit_));
  const bool fails = !failure_.ok() && !live.cancelled && take >= failure_after_;
  if (fails) take = std::min(take, std::max(failure_after_, live.emitted));
  if (live.cancelled) take = live.emitted;
  for (; live.emitted < take && event.finish == FinishReason::kNone; ++live.emitted) {
    const int32_t id = live.output[live.emitted];
    event.ids.push_back(id);
    if (sampling.num_top_logprobs >= 0) {
      event.logprobs.push_back(LogprobsOf(id, sampling.num_top_logprobs));
    }
    const bool is_end = id == info_.eos_token_id && !sampling.ignore_eos;
    const auto& stops = sampling.stop_token_ids;
    if (is_end || std::find(stops.begin(), stops.end(), id) != stops.end()) {
      event.finish = FinishReason::kStop;
      event.stop_token_id = id;
    }
  }
  if (event.start_index == 0 && sampling.prompt_logprobs) {
    for (size_t i = 1; i < live.request.prompt_ids.size(); ++i) {
      event.prompt_logprobs.push_back(
          LogprobsOf(live.request.prompt_ids[i], sampling.num_top_logprobs));
    }
  }
  if (live.cancelled) {
    event.finish = FinishReason::kCancelled;
  } else if (event.finish == FinishReason::kNone && fails) {
    event.finish = failure_finish_;
    event.status = failure_;
  } else if (event.finish == FinishReason::kNone && live.emitted == limit) {
    event.finish = FinishReason::kLength;
  }
  event.counters.prompt_tokens = static_cast<int64_t>(live.request.prompt_ids.size());
  event.counters.cached_tokens = std::min(cached_, event.counters.prompt_tokens - 1);
  event.counters.computed_tokens = event.counters.prompt_tokens - event.counters.cached_tokens;
  event.counters.cached_by_tier[static_cast<size_t>(CacheTier::kDram)] =
      event.counters.cached_tokens;
  event.counters.cache_written_tokens = cache_written_;
  event.counters.generated_tokens = static_cast<int64_t>(live.emitted);
  event.counters.queue_us = 1000;
  emitted_ += static_cast<int64_t>(event.ids.size());
  ++*outstanding_;
  event.credit = std::shared_ptr<void>(
      nullptr, [window = live.window->Take(), outstanding = outstanding_](void*) mutable {
        window.reset();
        --*outstanding;
      });
  return event;
}

}  // namespace deepinfer::testing
