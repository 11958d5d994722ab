// Chooses the workers of a request (docs/cluster.md §4), and remembers what became of earlier
// choices: how long answers are, which workers and which pairs of them failed.
// Thread rule: any thread. Owner: Gateway.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "base/clock.h"
#include "cluster/candidates.h"
#include "cluster/live_request.h"
#include "cluster/route_breaker.h"
#include "cluster/route_forecasts.h"
#include "cluster/worker_set.h"
#include "sched/output_lengths.h"

namespace deepinfer {

class Router {
 public:
  using Placement = LiveRequest::Placement;

  struct Choice {
    Placement placement;     // both null when nowhere
    bool busy = false;       // nowhere now, for want of credit
    RouteForecast forecast;  // by the costs of these workers; for a request that has not begun
  };

  // workers and clock are borrowed; random_seed 0: drawn.
  Router(const WorkerSet* workers, const Clock* clock, uint64_t random_seed);

  // Where the request would run now. One that has begun, or that was sent before, needs no credit.
  Choice Place(const LiveRequest& request, bool needs_credit);

  bool AnyWorker() const;  // takes new requests, or will once it has credit

  // Of its work on one of the workers; nothing while costs are unknown.
  struct Cost {
    double prompt_us = 0;
    double us_per_output_token = 0;
    int64_t output_tokens = 0;  // as many as most answers of late, at most
    double work_us() const {
      return prompt_us + us_per_output_token * static_cast<double>(output_tokens);
    }
  };
  std::optional<Cost> PredictCost(const LiveRequest& request) const;

  // What became of a choice.
  void NoteAnswer(int64_t generated_tokens);
  void NoteHandOff(const Placement& placement, bool went_well);
  void NoteRun(const Worker& worker, bool went_well);

  struct Barred {
    size_t workers = 0;
    size_t pairs = 0;
    int64_t openings = 0;  // since the start
  };
  Barred barred() const;

 private:
  static std::string NameOf(const WorkerInfo& worker);
  static std::string NameOf(const WorkerInfo& prefill, const WorkerInfo& decode);

  int64_t ExpectedOutput(const LiveRequest& request) const;
  // Makes those unusable that failed lately, unless nobody else is left.
  void DropBarred(Candidates* candidates) const;
  // A prefill worker and its partner that work together; both null when there are none.
  Choice PlacePair(const Candidates& candidates, const LiveRequest& request, int64_t tokens,
                   uint64_t random) const;
  Choice PlaceWhole(const Candidates& candidates, bool needs_credit, const LiveRequest& request,
                    std::initializer_list<WorkerRole> order, int64_t tokens) const;
  void NoteTry(const Placement& placement);

  const WorkerSet* const workers_;
  const Clock* const clock_;
  mutable std::mutex mutex_;
  OutputLengths output_lengths_;  // under mutex_, as all below
  std::minstd_rand random_;
  RouteBreaker worker_breaker_;
  RouteBreaker pair_breaker_;
};

}  // namespace deepinfer
