#include "cluster/candidates.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

namespace deepinfer {

namespace {

RouteCandidate CandidateOf(const LoadReport& load) {
  RouteCandidate c;
  c.usable = load.ready && !load.draining;
  c.running = load.running + load.waiting;
  c.max_running = load.max_running;
  c.kv_tokens = load.kv_tokens;
  if (load.kv_capacity_tokens > 0) {
    c.free_tokens = std::max<int64_t>(1, load.kv_capacity_tokens - load.kv_tokens);
  }
  c.queued_prompt_tokens = load.queued_prompt_tokens;
  c.costs = load.costs;
  return c;
}

// Where a hand-off may go or come from: states move only within a revision and one decoder tail,
// and prompts that are handed over by the store only between workers that share it.
using Meeting = std::tuple<std::string_view, bool, std::string_view>;

Meeting MeetingOf(const WorkerInfo& worker, bool by_store) {
  return {worker.revision, worker.full_decoder_tail,
          by_store ? std::string_view(worker.kv_root) : std::string_view()};
}

}  // namespace

Candidates::Candidates(std::shared_ptr<const WorkerSet::List> list) : workers(std::move(list)) {
  all.reserve(workers->size());
  infos.reserve(workers->size());
  for (const auto& worker : *workers) {
    all.push_back(CandidateOf(worker->Load()));
    infos.push_back(worker->shared_info());
    // The queue of an engine in this process is as good as one here: nothing strands in it.
    if (infos.back()->endpoint.empty()) all.back().max_running = 0;
  }
}

Candidates::Routes Candidates::Of(WorkerRole role, const std::string* revision) const {
  Routes some = all;
  for (size_t i = 0; i < some.size(); ++i) {
    some[i].usable = some[i].usable && infos[i]->role == role &&
                     (revision == nullptr || infos[i]->revision == *revision);
  }
  return some;
}

Candidates::Routes Candidates::ForAnswers(WorkerRole role, const std::string* revision) const {
  Routes some = Of(role, revision);
  for (size_t i = 0; i < some.size(); ++i) {
    some[i].usable = some[i].usable && !infos[i]->encoder_only;
  }
  return some;
}

Candidates::Routes Candidates::PartnersOf(size_t prefill) const {
  const WorkerInfo& sender = *infos[prefill];
  const bool by_store = sender.hands_over_by_store;
  Routes some = ForAnswers(WorkerRole::kDecode, &sender.revision);
  for (size_t i = 0; i < some.size(); ++i) {
    some[i].usable =
        some[i].usable && MeetingOf(*infos[i], by_store) == MeetingOf(sender, by_store);
  }
  return some;
}

Candidates::Routes Candidates::PrefillWithPartner() const {
  std::vector<Meeting> taken;  // few: a revision or two
  const auto is_taken = [&](const Meeting& meeting) {
    return std::find(taken.begin(), taken.end(), meeting) != taken.end();
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const WorkerInfo& info = *infos[i];
    if (!all[i].usable || info.role != WorkerRole::kDecode || info.encoder_only) continue;
    for (const bool by_store : {false, true}) {
      const Meeting meeting = MeetingOf(info, by_store);
      if (!is_taken(meeting)) taken.push_back(meeting);
    }
  }
  Routes some = Of(WorkerRole::kPrefill, nullptr);
  for (size_t i = 0; i < some.size(); ++i) {
    some[i].usable =
        some[i].usable && is_taken(MeetingOf(*infos[i], infos[i]->hands_over_by_store));
  }
  return some;
}

void Candidates::DropThoseWithoutCredit(RequestClass request_class) {
  for (RouteCandidate& w : all) w.usable = w.usable && HasCredit(w, request_class);
}

}  // namespace deepinfer
