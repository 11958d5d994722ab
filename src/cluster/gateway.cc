#include "cluster/gateway.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "cluster/incarnation.h"

namespace deepinfer {

namespace {

// Clients do not honour longer waits (api.md §20).
constexpr double kMostRetryAfterS = 60;
// Sweeps of workers, and how soon a request without a worker is tried again.
constexpr std::chrono::milliseconds kSweep{100};
// For a worker to end what was cancelled when the time to drain is over.
constexpr std::chrono::seconds kLastWord{5};
// A wait on the system's clock must not overflow it.
constexpr int64_t kMostDrainUs = int64_t{365} * 24 * 3600 * 1'000'000;

const Worker& First(const WorkerSet::List& workers) {
  DI_CHECK(!workers.empty());
  return *workers.front();
}

RouteCandidate CandidateOf(const LoadReport& load) {
  RouteCandidate c;
  c.usable = load.ready && !load.draining;
  c.running = load.running + load.waiting;
  c.kv_tokens = load.kv_tokens;
  if (load.kv_capacity_tokens > 0) {
    c.free_tokens = std::max<int64_t>(1, load.kv_capacity_tokens - load.kv_tokens);
  }
  c.queued_prompt_tokens = load.queued_prompt_tokens;
  c.costs = load.costs;
  return c;
}

}  // namespace

Gateway::Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers,
                 const Clock* clock)
    : options_(options),
      clock_(clock),
      workers_(std::move(workers)),
      info_(First(*workers_.list()).info()),
      random_(
          static_cast<uint32_t>(options.random_seed != 0 ? options.random_seed : NewIncarnation())),
      keeper_([this] { Keep(); }) {}

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
  // Their last events still come here.
  workers_.Clear();
  for (const LivePtr& live : left) End(live, FinishReason::kCancelled, OkStatus());
}

Status Gateway::Submit(EngineRequest request, TokenSink sink) {
  if (draining()) return Unavailable("the server is draining");
  const auto live = std::make_shared<LiveRequest>(std::move(request), std::move(sink));
  {
    const std::lock_guard lock(mutex_);
    if (!live_.emplace(live->id(), live).second) {
      return InvalidRequest("request id '" + live->id() + "' is already live");
    }
  }
  // A run that goes on anyway takes no room and waits for nothing.
  Status status = Adopt(live);
  if (status.code() == StatusCode::kNotFound) {
    status = CheckRoom(live->request());
    if (status.ok()) status = DispatchFirst(live);
  }
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

Status Gateway::CheckRoom(const EngineRequest& request) {
  int32_t waiting = 0;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) waiting += worker->Load().waiting;
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
  return CheckPromise(request);
}

Status Gateway::DispatchFirst(const LivePtr& live) {
  Status status = Unavailable("no worker is in reach");
  const size_t num_workers = workers_.list()->size();
  for (size_t tries = 0; tries < num_workers; ++tries) {
    status = Dispatch(live);
    if (status.code() != StatusCode::kUnavailable) break;
  }
  return status;
}

// What the router knows of the workers at one time.
struct Gateway::Candidates {
  std::shared_ptr<const WorkerSet::List> workers;
  std::vector<RouteCandidate> all;  // one per worker
  std::vector<WorkerInfo> infos;

  explicit Candidates(std::shared_ptr<const WorkerSet::List> list) : workers(std::move(list)) {
    for (const auto& worker : *workers) {
      all.push_back(CandidateOf(worker->Load()));
      infos.push_back(worker->info());
    }
  }

  // Those of a role, and of a revision unless that is null.
  std::vector<RouteCandidate> Of(WorkerRole role, const std::string* revision) const {
    std::vector<RouteCandidate> some = all;
    for (size_t i = 0; i < some.size(); ++i) {
      some[i].usable = some[i].usable && infos[i].role == role &&
                       (revision == nullptr || infos[i].revision == *revision);
    }
    return some;
  }

  // Of these the ones that hold all layers.
  std::vector<RouteCandidate> ForAnswers(WorkerRole role, const std::string* revision) const {
    std::vector<RouteCandidate> some = Of(role, revision);
    for (size_t i = 0; i < some.size(); ++i) {
      some[i].usable = some[i].usable && !infos[i].encoder_only;
    }
    return some;
  }

  // Where a hand-off may go or come from: states move only within a revision and one
  // decoder tail, and prompts that are handed over by the store only between workers that share it.
  using Meeting = std::tuple<std::string_view, bool, std::string_view>;
  static Meeting MeetingOf(const WorkerInfo& worker, bool by_store) {
    return {worker.revision, worker.full_decoder_tail,
            by_store ? std::string_view(worker.kv_root) : std::string_view()};
  }

  // Decode workers that take what this prefill worker hands over.
  std::vector<RouteCandidate> PartnersOf(const WorkerInfo& prefill) const {
    const bool by_store = prefill.hands_over_by_store;
    std::vector<RouteCandidate> some = ForAnswers(WorkerRole::kDecode, &prefill.revision);
    for (size_t i = 0; i < some.size(); ++i) {
      some[i].usable =
          some[i].usable && MeetingOf(infos[i], by_store) == MeetingOf(prefill, by_store);
    }
    return some;
  }

  // Prefill workers that a decode worker takes something from.
  std::vector<RouteCandidate> PrefillWithPartner() const {
    std::vector<RouteCandidate> some = ForAnswers(WorkerRole::kDecode, nullptr);
    std::set<Meeting> taken;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!some[i].usable) continue;
      for (const bool by_store : {false, true}) taken.insert(MeetingOf(infos[i], by_store));
    }
    some = Of(WorkerRole::kPrefill, nullptr);
    for (size_t i = 0; i < some.size(); ++i) {
      some[i].usable =
          some[i].usable && taken.contains(MeetingOf(infos[i], infos[i].hands_over_by_store));
    }
    return some;
  }
};

int64_t Gateway::ExpectedTokens(const LiveRequest& request) const {
  int64_t output = request.max_tokens();
  const std::lock_guard lock(forecast_mutex_);
  if (const auto usual = output_lengths_.P90()) output = std::min(output, *usual);
  return request.prompt_tokens() + output;
}

LiveRequest::Placement Gateway::Place(const LiveRequest& request) {
  // A choice that shares its prompt goes where that runs.
  if (!request.branch_of().empty() && request.num_attempts() == 0) {
    LivePtr leader;
    {
      const std::lock_guard lock(mutex_);
      const auto it = live_.find(request.branch_of());
      if (it != live_.end()) leader = it->second;
    }
    if (leader != nullptr) {
      const LiveRequest::Placement placement = leader->placement();
      if (placement.decode != nullptr) return placement;
    }
  }
  const Candidates candidates(workers_.list());
  const int64_t tokens = ExpectedTokens(request);
  // The first of these roles that has a usable worker.
  const auto decode = [&](std::initializer_list<WorkerRole> order) {
    for (const WorkerRole role : order) {
      const auto index = ChooseDecode(candidates.ForAnswers(role, nullptr), tokens);
      if (index) return (*candidates.workers)[*index];
    }
    return std::shared_ptr<Worker>();
  };
  // What has begun continues from its tokens on one worker.
  if (request.started()) {
    return {nullptr, decode({WorkerRole::kDecode, WorkerRole::kAll, WorkerRole::kPrefill})};
  }
  uint64_t random = 0;
  {
    const std::lock_guard lock(forecast_mutex_);
    random = random_();
  }
  const auto prefill =
      ChoosePrefill(candidates.PrefillWithPartner(), request.prompt_tokens(), random);
  if (prefill) {
    const auto partner = ChooseDecode(candidates.PartnersOf(candidates.infos[*prefill]), tokens);
    if (partner) return {(*candidates.workers)[*prefill], (*candidates.workers)[*partner]};
  }
  return {nullptr, decode({WorkerRole::kAll, WorkerRole::kDecode, WorkerRole::kPrefill})};
}

Status Gateway::CheckPromise(const EngineRequest& request) {
  const bool is_promised = options_.ttft_slo_us > 0 || options_.tpot_slo_us > 0;
  if (!is_promised || request.request_class == RequestClass::kBatch) return OkStatus();
  const Candidates candidates(workers_.list());
  if (!CostsAreKnown(candidates.all)) return OkStatus();
  const auto tokens = static_cast<int64_t>(request.prompt_ids.size());
  std::optional<double> done_us, step_us;
  for (size_t i = 0; i < candidates.all.size(); ++i) {
    const RouteCandidate& w = candidates.all[i];
    if (!w.usable) continue;
    const double step = DecodeStepUs(w, tokens), done = PromptDoneUs(w, tokens) + step;
    const WorkerRole role = candidates.infos[i].role;
    if (role != WorkerRole::kDecode && (!done_us || done < *done_us)) done_us = done;
    if (role != WorkerRole::kPrefill && (!step_us || step < *step_us)) step_us = step;
  }
  const auto ratio = [](std::optional<double> us, int64_t slo_us) {
    return us && slo_us > 0 ? *us / static_cast<double>(slo_us) : 0.0;
  };
  bool admits = false;
  {
    const std::lock_guard lock(forecast_mutex_);
    const bool in_time = ttft_shedding_.Admits(ratio(done_us, options_.ttft_slo_us));
    const bool fast_enough = tpot_shedding_.Admits(ratio(step_us, options_.tpot_slo_us));
    admits = in_time && fast_enough;
  }
  if (admits) return OkStatus();
  predicted_ttft_s_.store(done_us.value_or(0) * 1e-6, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  ++counters_.shed;
  return ResourceExhausted("the server is too busy to answer as fast as it promises");
}

Status Gateway::Adopt(const LivePtr& live) {
  const Status not_found = NotFound("no worker runs this work");
  if (live->work_id().empty()) return not_found;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    if (worker->Load().orphans == 0) continue;
    const std::optional<EngineRequest> request = live->Begin({nullptr, worker});
    if (!request) return Cancelled("the request was cancelled");
    const Status status =
        worker->Adopt(*request, SinkOf(live, request->attempt, LiveRequest::Leg::kWhole));
    if (!status.ok()) {
      live->Withdraw(request->attempt);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      ++counters_.adopted;
    }
    // It may have come before the worker knew the request.
    if (live->cancelled()) Cancel(live->id());
    return status;
  }
  return not_found;
}

Status Gateway::Dispatch(const LivePtr& live) {
  const LiveRequest::Placement placement = Place(*live);
  if (placement.decode == nullptr) return Unavailable("no worker accepts requests");
  std::optional<EngineRequest> request = live->Begin(placement);
  if (!request) return Cancelled("the request was cancelled");
  const uint32_t attempt = request->attempt;
  {
    const std::lock_guard lock(mutex_);
    if (live->num_attempts() > 1) ++counters_.redispatched;
    if (request->resume) ++counters_.migrated;
    if (placement.prefill != nullptr) ++counters_.hand_offs;
  }
  using Leg = LiveRequest::Leg;
  Status status;
  if (placement.prefill == nullptr) {
    status = placement.decode->Submit(*std::move(request), SinkOf(live, attempt, Leg::kWhole));
  } else {
    status = placement.decode->SubmitDecode(*request, SinkOf(live, attempt, Leg::kDecode));
    if (status.ok()) {
      status =
          placement.prefill->SubmitPrefill(*std::move(request), placement.decode->info().endpoint,
                                           SinkOf(live, attempt, Leg::kPrefill));
      if (!status.ok()) placement.decode->Cancel(live->id());
    }
  }
  if (!status.ok()) {
    live->Abandon(attempt);
  } else if (live->cancelled()) {
    // It may have come before the workers knew the request.
    Cancel(live->id());
  }
  return status;
}

TokenSink Gateway::SinkOf(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg) {
  return [this, request, attempt, leg](TokenEvent event) {
    OnEvent(request, attempt, leg, std::move(event));
  };
}

void Gateway::OnEvent(const LivePtr& request, uint32_t attempt, LiveRequest::Leg leg,
                      TokenEvent event) {
  const Status status = event.status;
  const FinishReason finish = event.finish;
  const int64_t generated = event.start_index + std::ssize(event.ids);
  const LiveRequest::Placement placement = request->placement();
  // The id is free before the client learns of the end, so that it may be used again at once.
  const LiveRequest::Outcome outcome =
      request->OnEvent(attempt, leg, std::move(event), [&] { Forget(request); });
  if (outcome != LiveRequest::Outcome::kEnded && outcome != LiveRequest::Outcome::kLost) return;
  if (outcome == LiveRequest::Outcome::kEnded && finish != FinishReason::kCancelled) {
    const std::lock_guard lock(forecast_mutex_);
    output_lengths_.Add(generated);
  }
  // The other half of an attempt that is over has nothing left to do.
  if (placement.prefill != nullptr) {
    const bool from_prefill = leg == LiveRequest::Leg::kPrefill;
    (from_prefill ? placement.decode : placement.prefill)->Cancel(request->id());
  }
  if (outcome == LiveRequest::Outcome::kEnded) return;
  Log(LogLevel::kInfo, "request.lost_worker",
      {{"request_id", request->id()}, {"attempt", int64_t{attempt}}, {"status", status}});
  {
    const std::lock_guard lock(mutex_);
    lost_.push_back(request);
  }
  changed_.notify_all();
}

void Gateway::Forget(const LivePtr& request) {
  {
    const std::lock_guard lock(mutex_);
    live_.erase(request->id());
  }
  changed_.notify_all();
}

void Gateway::End(const LivePtr& request, FinishReason reason, Status status) {
  (void)request->End(reason, std::move(status), [&] { Forget(request); });
}

void Gateway::Keep() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kSweep, [this] { return stop_ || !lost_.empty(); });
    if (stop_) return;
    for (LivePtr& request : lost_) waiting_.push_back({std::move(request), clock_->NowUs()});
    lost_.clear();
    lock.unlock();
    const int64_t now_us = clock_->NowUs();
    workers_.Sweep(now_us);
    RetryWaiting(now_us);
    lock.lock();
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
    const bool gives_up = request.num_attempts() >= static_cast<uint32_t>(options_.max_attempts) ||
                          now_us - w.since_us > options_.recovery_us;
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

std::optional<double> Gateway::ForecastWaitSeconds() const {
  std::vector<WorkerQueue> queues;
  const auto workers = workers_.list();
  for (const auto& worker : *workers) {
    const EngineStatistics s = worker->Statistics();
    queues.push_back(
        {s.incarnation, {s.waiting, s.waiting_prompt_tokens, s.started, s.prefill_rows}});
  }
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(forecast_mutex_);
  const QueueSnapshot sum = queues_.Add(queues);
  forecast_.Observe(now_us, sum);
  return forecast_.WaitSeconds(sum);
}

int32_t Gateway::RetryAfterSeconds() const {
  const double promised_s = static_cast<double>(options_.ttft_slo_us) * 1e-6;
  const double wait_s = std::max(ForecastWaitSeconds().value_or(1.0),
                                 predicted_ttft_s_.load(std::memory_order_relaxed) - promised_s);
  return static_cast<int32_t>(std::clamp(std::ceil(wait_s), 1.0, kMostRetryAfterS));
}

void Gateway::Cancel(std::string_view request_id) {
  LivePtr live;
  {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(std::string(request_id));
    if (it == live_.end()) return;
    live = it->second;
  }
  const LiveRequest::Placement placement = live->Cancel();
  for (const auto& worker : {placement.prefill, placement.decode}) {
    if (worker != nullptr) worker->Cancel(request_id);
  }
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
  sum.draining = draining();
  return sum;
}

bool Gateway::healthy() const {
  const auto workers = workers_.list();
  return std::any_of(workers->begin(), workers->end(),
                     [](const auto& worker) { return worker->healthy(); });
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
  const std::lock_guard lock(mutex_);
  return counters_;
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
