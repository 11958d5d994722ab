#include "cluster/gateway.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "model/kv_layout.h"

namespace deepinfer {

namespace {

// For a worker to end what was cancelled when the time to drain is over.
constexpr std::chrono::seconds kLastWord{5};
// A wait on the system's clock must not overflow it.
constexpr int64_t kMostDrainUs = int64_t{365} * 24 * 3600 * 1'000'000;

const Worker& First(const WorkerSet::List& workers) {
  DI_CHECK(!workers.empty());
  return *workers.front();
}

}  // namespace

Gateway::Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers,
                 const Clock* clock)
    : options_(options),
      clock_(clock),
      workers_(std::move(workers)),
      info_(First(*workers_.list()).info()),
      router_(&workers_, clock, options.random_seed),
      admission_({options.max_queued_requests, options.ttft_slo_us, options.tpot_slo_us}, &workers_,
                 clock),
      queue_({options.tenant_budget, options.tenant_burst_s * 1e6}) {
  prefixes_.Follow(*workers_.list());
  keeper_ = std::thread([this] { Keep(); });
}

Gateway::~Gateway() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  keeper_.join();
  std::vector<LivePtr> left;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, live] : live_) left.push_back(live);
  }
  for (const LivePtr& live : left) live->LetGo();
  prefixes_.Follow({});
  // Their last events still come here.
  workers_.Clear();
  for (const LivePtr& live : left) End(live, FinishReason::kCancelled, OkStatus());
}

Status Gateway::Submit(EngineRequest request, TokenSink sink) {
  if (draining()) return Unavailable("the server is draining");
  request.stored = prefixes_.Find(request);
  const auto live = std::make_shared<LiveRequest>(std::move(request), std::move(sink));
  {
    const std::lock_guard lock(mutex_);
    if (!live_.emplace(live->id(), live).second) {
      return InvalidRequest("request id '" + live->id() + "' is already live");
    }
  }
  // A run that goes on anyway takes no room and waits for nothing.
  Status status = Adopt(live);
  if (status.code() == StatusCode::kNotFound) status = Admit(live);
  if (status.code() == StatusCode::kCancelled) {
    // Cancelled by another thread before a worker knew of it: the sink still hears the end.
    {
      const std::lock_guard lock(mutex_);
      lost_.push_back(live);
    }
    changed_.notify_all();
    return OkStatus();
  }
  if (!status.ok()) Forget(live);
  return status;
}

Status Gateway::Admit(const LivePtr& live) {
  const EngineRequest& request = live->request();
  DI_RETURN_IF_ERROR(admission_.Check(request, queue_.state(request.request_class)));
  const int64_t now_us = clock_->NowUs();
  const double budget_wait_us = queue_.BudgetWaitUs(live->tenant(), now_us);
  if (request.queue_deadline_us != 0 &&
      budget_wait_us > static_cast<double>(request.queue_deadline_us - now_us)) {
    const std::lock_guard lock(mutex_);
    ++counters_.over_budget;
    return ResourceExhausted("the budget of the tenant is used up");
  }
  if (!live->branch_of().empty() && queue_.Follow(live->branch_of(), live, now_us)) {
    return OkStatus();
  }
  const bool is_branch = PlacementOfLeader(*live).decode != nullptr;
  if (is_branch || queue_.MayPass(*live, now_us)) {
    bool busy = false;
    const Status status = DispatchFirst(live, &busy);
    if (!busy) {
      if (status.ok() && queue_.limits_tenants()) queue_.Charge(live.get(), CostOf(*live), now_us);
      return status;
    }
  }
  if (!router_.AnyWorker()) return Unavailable("no worker accepts requests");
  // A mistake of the client must not wait for its turn.
  if (info_.vocab_size > 0) {
    DI_RETURN_IF_ERROR(ValidateRequest(request, info_.vocab_size, info_.max_model_len));
  }
  queue_.Add(live, CostOf(*live), now_us);
  LookAtQueue();
  return OkStatus();
}

Status Gateway::DispatchFirst(const LivePtr& live, bool* busy) {
  Status status = Unavailable("no worker is in reach");
  const size_t num_workers = workers_.list()->size();
  for (size_t tries = 0; tries < num_workers; ++tries) {
    Router::Choice choice{PlacementOfLeader(*live), false, {}};
    if (choice.placement.decode == nullptr) choice = router_.Place(*live, /*needs_credit=*/true);
    *busy = choice.busy;
    if (choice.busy) return OkStatus();
    status = Send(live, choice);
    if (status.code() != StatusCode::kUnavailable) break;
  }
  return status;
}

void Gateway::Forget(const LivePtr& request) {
  {
    const std::lock_guard lock(mutex_);
    live_.erase(request->id());
  }
  changed_.notify_all();
}

void Gateway::End(const LivePtr& request, FinishReason reason, Status status) {
  queue_.Settle(request.get(), request->num_generated(), clock_->NowUs());
  (void)request->End(reason, std::move(status), [&] { Forget(request); });
}

int32_t Gateway::RetryAfterSeconds(uint64_t tenant) const {
  return admission_.RetryAfterSeconds(queue_.state(RequestClass::kBatch),
                                      queue_.BudgetWaitUs(tenant, clock_->NowUs()) * 1e-6);
}

Gateway::LivePtr Gateway::Find(std::string_view request_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(std::string(request_id));
  return it == live_.end() ? nullptr : it->second;
}

void Gateway::Cancel(std::string_view request_id) {
  const LivePtr live = Find(request_id);
  if (live == nullptr) return;
  const LiveRequest::Placement placement = live->Cancel();
  for (const auto& worker : {placement.prefill, placement.decode}) {
    if (worker != nullptr) worker->Cancel(request_id);
  }
  if (placement.decode == nullptr) LookAtQueue();
}

bool Gateway::Waits(std::string_view request_id) const {
  const LivePtr live = Find(request_id);
  if (live == nullptr || live->started()) return false;
  const auto worker = live->placement().decode;
  return worker == nullptr || worker->Load().waiting > 0;
}

LoadReport Gateway::Load() const {
  LoadReport sum;
  sum.ready = false;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    const LoadReport load = worker->Load();
    sum.running += load.running;
    sum.waiting += load.waiting;
    sum.kv_tokens += load.kv_tokens;
    sum.kv_capacity_tokens += load.kv_capacity_tokens;
    sum.queued_prompt_tokens += load.queued_prompt_tokens;
    sum.ready = sum.ready || load.ready;
  }
  const GatewayQueueState queue = queue_.state(RequestClass::kBatch);
  sum.waiting += queue.requests;
  sum.queued_prompt_tokens += queue.prompt_tokens;
  sum.draining = draining();
  return sum;
}

bool Gateway::healthy() const {
  const auto workers = workers_.list();
  return std::any_of(workers->begin(), workers->end(),
                     [](const auto& worker) { return worker->healthy(); });
}

std::string_view Gateway::WhyNotReady() const {
  bool any_in_reach = false, any_has_room = false;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    const LoadReport load = worker->Load();
    if (!load.ready || load.draining || worker->shared_info()->encoder_only) continue;
    any_in_reach = true;
    // Every running request may leave a part of its last block empty.
    const int64_t held = load.kv_tokens + int64_t{load.running} * kBlockTokens;
    any_has_room = any_has_room || load.kv_capacity_tokens == 0 || load.waiting == 0 ||
                   held < load.kv_capacity_tokens;
  }
  if (!any_in_reach) return "No worker takes requests";
  if (Load().waiting >= options_.max_queued_requests) return "The queue is full";
  return any_has_room ? "" : "The cache is full";
}

std::vector<EngineStatistics> Gateway::Statistics() const {
  std::vector<EngineStatistics> all;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) all.push_back(worker->Statistics());
  return all;
}

std::vector<StoreStatistics> Gateway::Stores() const {
  std::vector<StoreStatistics> all;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) all.push_back(worker->Store());
  return all;
}

Status Gateway::Profile(size_t index, int32_t num_steps, int64_t deadline_us, ProfileSink done) {
  const auto workers = workers_.list();
  if (index >= workers->size()) {
    return InvalidRequest("worker must be below " + std::to_string(workers->size()));
  }
  return (*workers)[index]->Profile(num_steps, deadline_us, std::move(done));
}

GatewayCounters Gateway::counters() const {
  GatewayCounters counters;
  {
    const std::lock_guard lock(mutex_);
    counters = counters_;
    counters.busiest = shares_.busiest();
  }
  counters.shed = admission_.num_shed();
  counters.probes = prefixes_.counts();
  counters.forecast_errors = forecasts_.errors();
  queue_.Count(clock_->NowUs(), &counters);
  const Router::Barred barred = router_.barred();
  counters.openings = barred.openings;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    const LoadReport load = worker->Load();
    counters.orphans += load.orphans;
    const HandOffCounters& h = load.hand_offs;
    counters.leases_held +=
        h.tickets_granted - h.tickets_released + h.pins_acquired - h.pins_released;
    counters.ready_workers += load.ready ? 1 : 0;
  }
  counters.barred_workers = static_cast<int64_t>(barred.workers);
  counters.barred_pairs = static_cast<int64_t>(barred.pairs);
  return counters;
}

void Gateway::Drain(int64_t deadline_us) {
  draining_.store(true, std::memory_order_release);
  std::vector<LivePtr> left;
  {
    std::unique_lock lock(mutex_);
    const auto none = [this] { return live_.empty(); };
    const int64_t left_us = std::max<int64_t>(0, deadline_us - clock_->NowUs());
    changed_.wait_for(lock, std::chrono::microseconds(std::min(left_us, kMostDrainUs)), none);
    for (const auto& [id, live] : live_) left.push_back(live);
  }
  for (const LivePtr& live : left) Cancel(live->id());
  const auto workers = workers_.list();
  for (const auto& worker : *workers) worker->Drain(deadline_us);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kLastWord, [this] { return live_.empty(); });
}

}  // namespace deepinfer
