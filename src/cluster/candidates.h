// What the router knows of the workers at one time, and who may work with whom (docs/cluster.md
// §4). Thread rule: values.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/worker_set.h"
#include "sched/routing.h"

namespace deepinfer {

struct Candidates {
  using Routes = std::vector<RouteCandidate>;  // one per worker

  explicit Candidates(std::shared_ptr<const WorkerSet::List> list);

  // Those of a role, and of a revision unless that is null.
  Routes Of(WorkerRole role, const std::string* revision) const;
  // Of these the ones that hold all layers.
  Routes ForAnswers(WorkerRole role, const std::string* revision) const;
  // Decode workers that take what this prefill worker hands over.
  Routes PartnersOf(size_t prefill) const;
  // Prefill workers that a decode worker takes something from.
  Routes PrefillWithPartner() const;
  // Makes those unusable that take nothing more of the class just now.
  void DropThoseWithoutCredit(RequestClass request_class);

  std::shared_ptr<const WorkerSet::List> workers;
  Routes all;
  std::vector<std::shared_ptr<const WorkerInfo>> infos;
};

}  // namespace deepinfer
