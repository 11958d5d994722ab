// Attempts of a request: which worker gets it, and what its events mean (docs/cluster.md §4).

#include <optional>
#include <utility>

#include "base/log.h"
#include "cluster/gateway.h"

namespace deepinfer {

namespace {

// What was expected of a request and what came of it, in microseconds.
void LogForecast(const LiveRequest& request, const RouteTimes& times) {
  Log(LogLevel::kDebug, "request.forecast",
      {{"request_id", request.id()},
       {"prompt_tokens", request.prompt_tokens()},
       {"ttft_by_costs", times.by_costs.ttft_us},
       {"ttft_forecast", times.forecast.ttft_us},
       {"ttft", times.ttft_us()},
       {"tpot_by_costs", times.by_costs.tpot_us},
       {"tpot_forecast", times.forecast.tpot_us},
       {"tpot", times.tpot_us()}});
}

}  // namespace

LiveRequest::Placement Gateway::PlacementOfLeader(const LiveRequest& request) {
  // A choice that shares its prompt goes where that runs.
  if (request.branch_of().empty() || request.num_attempts() > 0) return {};
  LivePtr leader;
  {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(request.branch_of());
    if (it == live_.end()) return {};
    leader = it->second;
  }
  return leader->placement();
}

std::optional<Router::Cost> Gateway::CostOf(const LiveRequest& request) const {
  std::optional<Router::Cost> cost = router_.PredictCost(request);
  if (cost && !request.branch_of().empty()) cost->prompt_us = 0;
  return cost;
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
  Router::Choice choice{PlacementOfLeader(*live), false, {}};
  if (choice.placement.decode == nullptr) choice = router_.Place(*live, /*needs_credit=*/false);
  return Send(live, choice);
}

Status Gateway::Send(const LivePtr& live, const Router::Choice& choice) {
  const LiveRequest::Placement& placement = choice.placement;
  if (placement.decode == nullptr) return Unavailable("no worker accepts requests");
  std::optional<EngineRequest> request = live->Begin(placement);
  if (!request) return Cancelled("the request was cancelled");
  const uint32_t attempt = request->attempt;
  // What goes on elsewhere, or shares the prompt of another, says nothing of forecasts.
  if (live->num_attempts() == 1 && choice.forecast.ttft_us > 0) {
    RouteTimes times;
    times.by_costs = choice.forecast;
    times.forecast = forecasts_.Correct(choice.forecast);
    times.sent_us = clock_->NowUs();
    live->Watch(times);
  }
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
      status = placement.prefill->SubmitPrefill(*std::move(request),
                                                placement.decode->shared_info()->endpoint,
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
  LiveRequest::News news;
  const LiveRequest::Outcome outcome = request->OnEvent(
      attempt, leg, std::move(event), clock_->NowUs(), [&] { Forget(request); }, &news);
  if (news.first) forecasts_.NoteFirstToken(news.times);
  if (news.end && (finish == FinishReason::kStop || finish == FinishReason::kLength)) {
    forecasts_.NoteAnswer(news.times);
    LogForecast(*request, news.times);
  }
  NoteOutcome(outcome, leg, placement, finish, status.code());
  if (outcome != LiveRequest::Outcome::kEnded && outcome != LiveRequest::Outcome::kLost) return;
  if (outcome == LiveRequest::Outcome::kEnded) {
    if (finish != FinishReason::kCancelled) router_.NoteAnswer(generated);
    queue_.Settle(request.get(), request->num_generated(), clock_->NowUs());
    LookAtQueue();
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

void Gateway::NoteOutcome(LiveRequest::Outcome outcome, LiveRequest::Leg leg,
                          const LiveRequest::Placement& placement, FinishReason finish,
                          StatusCode code) {
  using Outcome = LiveRequest::Outcome;
  const std::shared_ptr<Worker>& worker =
      leg == LiveRequest::Leg::kPrefill ? placement.prefill : placement.decode;
  if (worker == nullptr) return;
  if (finish == FinishReason::kHandedOff) {
    router_.NoteHandOff(placement, true);
    return LookAtQueue();
  }
  if (outcome == Outcome::kEnded) {
    const bool failed = code == StatusCode::kInternal || code == StatusCode::kDataCorruption;
    if (failed || finish == FinishReason::kStop || finish == FinishReason::kLength) {
      router_.NoteRun(*worker, !failed);
    }
  }
  if (outcome != Outcome::kLost || code != StatusCode::kUnavailable) return;
  // A worker that is lost, or leaves, has not failed at this request.
  const auto is_there = [](const Worker& w) {
    const LoadReport load = w.Load();
    return load.ready && !load.draining;
  };
  if (!is_there(*placement.decode)) return;
  if (placement.prefill == nullptr) return router_.NoteRun(*worker, false);
  if (is_there(*placement.prefill)) router_.NoteHandOff(placement, false);
}

}  // namespace deepinfer
