// Quotas of tenants, enforced: what is too much leaves the index in the next round, least valuable
// blocks first, and segments of which less than half is left are written anew.
#include <algorithm>
#include <map>

#include "kvcache/janitor.h"

namespace deepinfer {

void Janitor::EnforceQuotas(int64_t now_ns, std::vector<JanitorAction>* actions) {
  const std::vector<QuotaExcess> excesses = context_->quotas.Excesses(context_->tenants.Tags());
  if (excesses.empty()) return;
  struct Candidate {
    Resident resident;
    uint32_t segment = 0;
    double chance = 0;
  };
  std::map<uint16_t, std::vector<Candidate>> by_tenant;
  for (const QuotaExcess& excess : excesses) by_tenant[excess.tenant] = {};
  std::map<uint32_t, Survey> surveys;
  for (const SegmentInfo& info : context_->segments.List()) {
    if (info.peer || !Owns(info.folder)) continue;
    auto survey = Look(info, now_ns);
    if (!survey.ok()) continue;
    for (const Resident& resident : survey->residents) {
      const auto tenant = by_tenant.find(resident.indexed.tenant);
      if (tenant == by_tenant.end()) continue;
      // What is pinned stays until the operator says otherwise.
      if (resident.indexed.retention == RetentionClass::kPinned) continue;
      tenant->second.push_back({resident, info.id, ChanceOfReuse(resident, now_ns)});
    }
    surveys.emplace(info.id, *std::move(survey));
  }
  // Of one prompt the deepest block first: nobody can use a block without those before it.
  const auto goes_before = [](const Candidate& a, const Candidate& b) {
    if (a.chance != b.chance) return a.chance < b.chance;
    if (a.resident.indexed.touched_minute != b.resident.indexed.touched_minute) {
      return a.resident.indexed.touched_minute < b.resident.indexed.touched_minute;
    }
    return a.resident.entry.block_number > b.resident.entry.block_number;
  };
  std::map<uint32_t, int64_t> dropped;  // by segment
  for (auto& [tenant, candidates] : by_tenant) std::ranges::sort(candidates, goes_before);
  std::map<uint16_t, int64_t> gone;  // by tenant, in classes
  for (const QuotaExcess& excess : excesses) {
    std::vector<Candidate>& candidates = by_tenant.at(excess.tenant);
    const auto counts = [&](const Candidate& candidate) {
      return !excess.retention || candidate.resident.indexed.retention == *excess.retention;
    };
    const int64_t ours = std::ranges::count_if(candidates, counts);
    int64_t too_many = excess.blocks - (excess.retention ? 0 : gone[excess.tenant]);
    // Of a shared root every owner gives its part.
    int64_t left = std::min(ours, (too_many * ours + excess.held - 1) / excess.held);
    std::erase_if(candidates, [&](const Candidate& candidate) {
      if (left <= 0 || !counts(candidate)) return false;
      --left;
      const auto retention = static_cast<size_t>(candidate.resident.indexed.retention);
      context_->Forget(candidate.resident.entry.key, candidate.resident.indexed,
                       MissReason::kEvictedEarly);
      ++context_->counters.quota_evictions[retention];
      if (candidate.resident.live) ++context_->counters.retention_breaches[retention];
      ++dropped[candidate.segment];
      ++gone[excess.tenant];
      return true;
    });
  }
  const bool may_write = context_->write_budget.Level(context_->clock->NowUs()) >= 0;
  for (const auto& [segment, count] : dropped) {
    const Survey& survey = surveys.at(segment);
    const int64_t live = static_cast<int64_t>(survey.residents.size()) - count;
    actions->push_back({survey.info.path, "drop_blocks", "quota", live, survey.info.num_records});
    if (may_write && 2 * live < survey.info.num_records) RewriteSoon(segment);
  }
}

}  // namespace deepinfer
