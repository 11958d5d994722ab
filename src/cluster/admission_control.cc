#include "cluster/admission_control.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cluster/candidates.h"

namespace deepinfer {

namespace {

// Clients do not honour longer waits (api.md §20).
constexpr double kMostRetryAfterS = 60;

}  // namespace

Status AdmissionControl::Check(const EngineRequest& request, const GatewayQueueState& queue) {
  int32_t waiting = queue.requests;
  const auto workers = workers_->list();
  for (const auto& worker : *workers) waiting += worker->Load().waiting;
  if (waiting >= options_.max_queued_requests) {
    return ResourceExhausted(std::to_string(waiting) + " requests are already waiting");
  }
  const std::optional<double> wait_s = ForecastWaitSeconds(queue);
  const int64_t now_us = clock_->NowUs();
  if (wait_s && request.queue_deadline_us != 0 &&
      *wait_s * 1e6 > static_cast<double>(request.queue_deadline_us - now_us)) {
    return ResourceExhausted("the request would wait about " +
                             std::to_string(std::llround(*wait_s)) + " s, longer than it may");
  }
  return CheckPromise(request, queue);
}

Status AdmissionControl::CheckPromise(const EngineRequest& request,
                                      const GatewayQueueState& queue) {
  const bool is_promised = options_.ttft_slo_us > 0 || options_.tpot_slo_us > 0;
  if (!is_promised || request.request_class == RequestClass::kBatch) return OkStatus();
  const Candidates candidates(workers_->list());
  if (!CostsAreKnown(candidates.all)) return OkStatus();
  const auto tokens = static_cast<int64_t>(request.prompt_ids.size());
  std::optional<double> done_us, step_us;
  int32_t num_for_prompts = 0;
  for (size_t i = 0; i < candidates.all.size(); ++i) {
    const RouteCandidate& w = candidates.all[i];
    if (!w.usable) continue;
    const double step = DecodeStepUs(w, tokens), done = PromptDoneUs(w, PromptOf(request)) + step;
    const WorkerRole role = candidates.infos[i]->role;
    num_for_prompts += role != WorkerRole::kDecode ? 1 : 0;
    if (role != WorkerRole::kDecode && (!done_us || done < *done_us)) done_us = done;
    if (role != WorkerRole::kPrefill && (!step_us || step < *step_us)) step_us = step;
  }
  // What waits here goes to all of them.
  if (done_us) *done_us += queue.ahead_us / num_for_prompts;
  const auto ratio = [](std::optional<double> us, int64_t slo_us) {
    return us && slo_us > 0 ? *us / static_cast<double>(slo_us) : 0.0;
  };
  bool admits = false;
  {
    const std::lock_guard lock(mutex_);
    const bool in_time = ttft_shedding_.Admits(ratio(done_us, options_.ttft_slo_us));
    const bool fast_enough = tpot_shedding_.Admits(ratio(step_us, options_.tpot_slo_us));
    admits = in_time && fast_enough;
  }
  if (admits) return OkStatus();
  predicted_ttft_s_.store(done_us.value_or(0) * 1e-6, std::memory_order_relaxed);
  num_shed_.fetch_add(1, std::memory_order_relaxed);
  return ResourceExhausted("the server is too busy to answer as fast as it promises");
}

std::optional<double> AdmissionControl::ForecastWaitSeconds(const GatewayQueueState& queue) const {
  std::vector<WorkerQueue> queues;
  const auto workers = workers_->list();
  queues.reserve(workers->size());
  for (const auto& worker : *workers) queues.push_back(worker->Queue());
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  QueueSnapshot sum = queues_.Add(queues);
  sum.waiting += queue.requests;
  sum.waiting_prompt_tokens += queue.prompt_tokens;
  forecast_.Observe(now_us, sum);
  return forecast_.WaitSeconds(sum);
}

int32_t AdmissionControl::RetryAfterSeconds(const GatewayQueueState& queue,
                                            double at_least_s) const {
  const double promised_s = static_cast<double>(options_.ttft_slo_us) * 1e-6;
  const double wait_s = std::max({at_least_s, ForecastWaitSeconds(queue).value_or(1.0),
                                  predicted_ttft_s_.load(std::memory_order_relaxed) - promised_s});
  return static_cast<int32_t>(std::clamp(std::ceil(wait_s), 1.0, kMostRetryAfterS));
}

}  // namespace deepinfer
