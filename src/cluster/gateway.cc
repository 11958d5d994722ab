#include "cluster/gateway.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace deepinfer {

namespace {

// Clients do not honour longer waits (api.md §20).
constexpr double kMostRetryAfterS = 60;

}  // namespace

Gateway::Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers,
                 const Clock* clock)
    : options_(options), workers_(std::move(workers)), clock_(clock) {
  DI_CHECK(!workers_.empty());
}

Gateway::~Gateway() = default;

const WorkerInfo& Gateway::info() const { return workers_.front()->info(); }

Status Gateway::Submit(EngineRequest request, TokenSink sink) {
  if (draining()) return Unavailable("the server is draining");
  // Fewest live requests first; the first of equals.
  Worker* best = nullptr;
  int32_t best_live = 0, waiting = 0;
  for (const auto& worker : workers_) {
    const LoadReport load = worker->Load();
    const int32_t live = load.running + load.waiting;
    waiting += load.waiting;
    if (!load.draining && (best == nullptr || live < best_live)) {
      best = worker.get();
      best_live = live;
    }
  }
  if (best == nullptr) return Unavailable("no worker accepts requests");
  if (waiting >= options_.max_queued_requests) {
    return ResourceExhausted(std::to_string(waiting) + " requests are already waiting");
  }
  const std::optional<double> wait_s = ForecastWaitSeconds();
  const int64_t now_us = clock_->NowUs();
  if (wait_s && request.queue_deadline_us != 0 &&
      *wait_s * 1e6 > static_cast<double>(request.queue_deadline_us - now_us)) {
    return ResourceExhausted("the request would wait about " +
                             std::to_string(std::llround(*wait_s)) + " s, longer than it may");
  }
  return best->Submit(std::move(request), std::move(sink));
}

std::optional<double> Gateway::ForecastWaitSeconds() const {
  QueueSnapshot sum;
  for (const auto& worker : workers_) {
    const EngineStatistics statistics = worker->Statistics();
    sum.waiting += statistics.waiting;
    sum.waiting_prompt_tokens += statistics.waiting_prompt_tokens;
    sum.started += statistics.started;
    sum.prefill_rows += statistics.prefill_rows;
  }
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(forecast_mutex_);
  forecast_.Observe(now_us, sum);
  return forecast_.WaitSeconds(sum);
}

int32_t Gateway::RetryAfterSeconds() const {
  const double wait_s = ForecastWaitSeconds().value_or(1.0);
  return static_cast<int32_t>(std::clamp(std::ceil(wait_s), 1.0, kMostRetryAfterS));
}

void Gateway::Cancel(std::string_view request_id) {
  for (const auto& worker : workers_) worker->Cancel(request_id);
}

LoadReport Gateway::Load() const {
  LoadReport sum;
  for (const auto& worker : workers_) {
    const LoadReport load = worker->Load();
    sum.running += load.running;
    sum.waiting += load.waiting;
    sum.kv_tokens += load.kv_tokens;
    sum.kv_capacity_tokens += load.kv_capacity_tokens;
  }
  sum.draining = draining();
  return sum;
}

bool Gateway::healthy() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->healthy(); });
}

std::vector<EngineStatistics> Gateway::Statistics() const {
  std::vector<EngineStatistics> all;
  for (const auto& worker : workers_) all.push_back(worker->Statistics());
  return all;
}

std::vector<StoreStatistics> Gateway::Stores() const {
  std::vector<StoreStatistics> all;
  for (const auto& worker : workers_) all.push_back(worker->Store());
  return all;
}

Status Gateway::Profile(size_t index, int32_t num_steps, int64_t deadline_us, ProfileSink done) {
  if (index >= workers_.size()) {
    return InvalidRequest("worker must be below " + std::to_string(workers_.size()));
  }
  return workers_[index]->Profile(num_steps, deadline_us, std::move(done));
}

void Gateway::Drain(int64_t deadline_us) {
  draining_.store(true, std::memory_order_release);
  for (const auto& worker : workers_) worker->Drain(deadline_us);
}

}  // namespace deepinfer
