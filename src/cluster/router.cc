#include "cluster/router.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/incarnation.h"

namespace deepinfer {

namespace {

// A worker that fails requests one after the other is quick at it, and would get ever more.
constexpr RouteBreakerOptions kOfWorkers{.failures_to_open = 5, .open_us = 30'000'000};
// A way between two workers fails for all requests alike, and others lead to the same end.
constexpr RouteBreakerOptions kOfPairs{.failures_to_open = 1, .open_us = 2'000'000};

std::shared_ptr<Worker> At(const Candidates& candidates, size_t index) {
  return (*candidates.workers)[index];
}

RouteForecast Forecast(const Candidates& candidates, size_t prompt, size_t answer,
                       const LiveRequest& request) {
  const RouteCandidate& p = candidates.all[prompt];
  const RouteCandidate& a = candidates.all[answer];
  RouteForecast forecast;
  forecast.prompt_worker = candidates.infos[prompt]->incarnation;
  forecast.answer_worker = candidates.infos[answer]->incarnation;
  if (p.costs.prompt_us_per_token > 0) {
    forecast.ttft_us = PromptDoneUs(p, request.prompt());
  }
  if (a.costs.step_us_per_row > 0) forecast.tpot_us = DecodeStepUs(a, request.prompt_tokens());
  return forecast;
}

}  // namespace

Router::Router(const WorkerSet* workers, const Clock* clock, uint64_t random_seed)
    : workers_(workers),
      clock_(clock),
      random_(static_cast<uint32_t>(random_seed != 0 ? random_seed : NewIncarnation())),
      worker_breaker_(kOfWorkers),
      pair_breaker_(kOfPairs) {}

std::string Router::NameOf(const WorkerInfo& worker) {
  return worker.endpoint + "#" + std::to_string(worker.incarnation);
}

std::string Router::NameOf(const WorkerInfo& prefill, const WorkerInfo& decode) {
  return NameOf(prefill) + ">" + NameOf(decode);
}

int64_t Router::ExpectedOutput(const LiveRequest& request) const {
  const std::lock_guard lock(mutex_);
  const auto usual = output_lengths_.P90();
  return usual ? std::min(request.max_tokens(), *usual) : request.max_tokens();
}

void Router::DropBarred(Candidates* candidates) const {
  const std::lock_guard lock(mutex_);
  if (worker_breaker_.empty()) return;
  const int64_t now_us = clock_->NowUs();
  std::vector<RouteCandidate> left = candidates->all;
  bool any = false;
  for (size_t i = 0; i < left.size(); ++i) {
    left[i].usable =
        left[i].usable && worker_breaker_.Allows(NameOf(*candidates->infos[i]), now_us);
    any = any || left[i].usable;
  }
  if (any) candidates->all = std::move(left);
}

Router::Choice Router::PlacePair(const Candidates& candidates, const LiveRequest& request,
                                 int64_t tokens, uint64_t random) const {
  Candidates::Routes prefill = candidates.PrefillWithPartner();
  const std::lock_guard lock(mutex_);
  const int64_t now_us = clock_->NowUs();
  while (const auto chosen = ChoosePrefill(prefill, request.prompt(), random)) {
    Candidates::Routes partners = candidates.PartnersOf(*chosen);
    for (size_t i = 0; i < partners.size() && !pair_breaker_.empty(); ++i) {
      if (!partners[i].usable) continue;
      const std::string name = NameOf(*candidates.infos[*chosen], *candidates.infos[i]);
      partners[i].usable = pair_breaker_.Allows(name, now_us);
    }
    const auto partner = ChooseDecode(partners, tokens);
    if (partner) {
      return {{At(candidates, *chosen), At(candidates, *partner)},
              false,
              Forecast(candidates, *chosen, *partner, request)};
    }
    prefill[*chosen].usable = false;
  }
  return {};
}

Router::Choice Router::PlaceWhole(const Candidates& candidates, bool needs_credit,
                                  const LiveRequest& request,
                                  std::initializer_list<WorkerRole> order, int64_t tokens) const {
  // The first of these roles that has a usable worker.
  for (const WorkerRole role : order) {
    Candidates::Routes routes = candidates.ForAnswers(role, nullptr);
    if (!ChooseDecode(routes, tokens)) continue;
    for (RouteCandidate& w : routes)
      w.usable = w.usable && (!needs_credit || HasCredit(w, request.request_class()));
    const auto index = ChooseDecode(routes, tokens);
    if (!index) return {{}, /*busy=*/true, {}};
    return {
        {nullptr, At(candidates, *index)}, false, Forecast(candidates, *index, *index, request)};
  }
  return {};
}

Router::Choice Router::Place(const LiveRequest& request, bool needs_credit) {
  Candidates candidates(workers_->list());
  DropBarred(&candidates);
  const int64_t tokens = request.prompt_tokens() + ExpectedOutput(request);
  constexpr WorkerRole kAll = WorkerRole::kAll, kPrefill = WorkerRole::kPrefill,
                       kDecode = WorkerRole::kDecode;
  // What has begun continues from its tokens on one worker.
  if (request.started()) {
    return PlaceWhole(candidates, needs_credit, request, {kDecode, kAll, kPrefill}, tokens);
  }
  uint64_t random = 0;
  {
    const std::lock_guard lock(mutex_);
    random = random_();
  }
  Choice choice;
  const Candidates::Routes all = candidates.all;
  if (needs_credit) candidates.DropThoseWithoutCredit(request.request_class());
  choice = PlacePair(candidates, request, tokens, random);
  if (choice.placement.prefill == nullptr) {
    candidates.all = all;
    choice.busy =
        needs_credit && PlacePair(candidates, request, tokens, random).placement.prefill != nullptr;
    if (!choice.busy) {
      choice = PlaceWhole(candidates, needs_credit, request, {kAll, kDecode, kPrefill}, tokens);
    }
  }
  if (choice.placement.decode != nullptr) NoteTry(choice.placement);
  return choice;
}

void Router::NoteTry(const Placement& placement) {
  const std::lock_guard lock(mutex_);
  if (worker_breaker_.empty() && pair_breaker_.empty()) return;
  const int64_t now_us = clock_->NowUs();
  const auto decode = placement.decode->shared_info();
  worker_breaker_.NoteTry(NameOf(*decode), now_us);
  if (placement.prefill == nullptr) return;
  const auto prefill = placement.prefill->shared_info();
  worker_breaker_.NoteTry(NameOf(*prefill), now_us);
  pair_breaker_.NoteTry(NameOf(*prefill, *decode), now_us);
}

bool Router::AnyWorker() const {
  const auto workers = workers_->list();
  return std::any_of(workers->begin(), workers->end(), [](const auto& worker) {
    const LoadReport load = worker->Load();
    return load.ready && !load.draining;
  });
}

std::optional<Router::Cost> Router::PredictCost(const LiveRequest& request) const {
  const auto workers = workers_->list();
  Cost cost;
  cost.output_tokens = ExpectedOutput(request);
  for (const auto& worker : *workers) {
    const LoadReport load = worker->Load();
    RouteCandidate w;
    w.running = load.running;
    w.costs = load.costs;
    const auto prompt_us = WorkUs(w, request.prompt(), 0);
    const auto work_us = WorkUs(w, request.prompt(), cost.output_tokens);
    if (!load.ready || !prompt_us || !work_us) continue;
    cost.prompt_us = *prompt_us;
    cost.us_per_output_token =
        (*work_us - *prompt_us) / static_cast<double>(std::max<int64_t>(1, cost.output_tokens));
    return cost;
  }
  return std::nullopt;
}

void Router::NoteAnswer(int64_t generated_tokens) {
  const std::lock_guard lock(mutex_);
  output_lengths_.Add(generated_tokens);
}

void Router::NoteHandOff(const Placement& placement, bool went_well) {
  if (placement.prefill == nullptr || placement.decode == nullptr) return;
  const auto prefill = placement.prefill->shared_info(), decode = placement.decode->shared_info();
  const std::lock_guard lock(mutex_);
  if (went_well) {
    if (!pair_breaker_.empty()) pair_breaker_.NoteSuccess(NameOf(*prefill, *decode));
    return;
  }
  pair_breaker_.NoteFailure(NameOf(*prefill, *decode), clock_->NowUs());
  Log(LogLevel::kWarning, "pair.failed",
      {{"prefill", prefill->endpoint}, {"decode", decode->endpoint}});
}

void Router::NoteRun(const Worker& worker, bool went_well) {
  const std::lock_guard lock(mutex_);
  if (went_well && worker_breaker_.empty()) return;
  const std::string name = NameOf(*worker.shared_info());
  if (went_well) return worker_breaker_.NoteSuccess(name);
  worker_breaker_.NoteFailure(name, clock_->NowUs());
}

Router::Barred Router::barred() const {
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  return {worker_breaker_.num_open(now_us), pair_breaker_.num_open(now_us),
          worker_breaker_.num_openings() + pair_breaker_.num_openings()};
}

}  // namespace deepinfer
