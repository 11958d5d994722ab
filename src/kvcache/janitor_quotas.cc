// Quotas of tenants, enforced: what is too much leaves the index in the next round, least valuable
// blocks first, and the logs say so for later starts; segments of which less than half is left are
// written anew.
#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "kvcache/janitor.h"

namespace deepinfer {

// What may leave in a round, and what has left.
struct Janitor::QuotaRound {
  struct Candidate {
    Resident resident;
    uint32_t segment = 0;
    double value = 0;
  };

  // Of one prompt the deepest block first: nobody can use a block without those before it.
  static bool GoesBefore(const Candidate& a, const Candidate& b) {
    if (a.value != b.value) return a.value < b.value;
    if (a.resident.indexed.touched_minute != b.resident.indexed.touched_minute) {
      return a.resident.indexed.touched_minute < b.resident.indexed.touched_minute;
    }
    return a.resident.entry.block_number > b.resident.entry.block_number;
  }

  std::map<uint16_t, std::vector<Candidate>> by_tenant;  // those over a quota; the first go first
  std::map<uint32_t, Survey> surveys;                    // by segment
  std::map<uint16_t, int64_t> gone;                      // blocks by tenant, in all classes
  std::map<uint32_t, std::vector<IndexEntry>> dropped;   // by segment
};

void Janitor::EnforceQuotas(int64_t now_ns, std::vector<JanitorAction>* actions) {
  const std::vector<QuotaExcess> excesses = context_->quotas.Excesses(context_->tenants.Tags());
  if (excesses.empty()) return;
  QuotaRound round;
  for (const QuotaExcess& excess : excesses) round.by_tenant[excess.tenant] = {};
  GatherCandidates(now_ns, &round);
  for (const QuotaExcess& excess : excesses) DropExcess(excess, &round);
  LogDropped(round);
  const bool may_write = context_->write_budget.Level(context_->clock->NowUs()) >= 0;
  for (const auto& [segment, entries] : round.dropped) {
    const Survey& survey = round.surveys.at(segment);
    const auto live = static_cast<int64_t>(survey.residents.size() - entries.size());
    actions->push_back({survey.info.path, "drop_blocks", "quota", live, survey.info.num_records});
    if (may_write && 2 * live < survey.info.num_records) RewriteSoon(segment);
  }
}

void Janitor::GatherCandidates(int64_t now_ns, QuotaRound* round) const {
  for (const SegmentInfo& info : context_->segments.List()) {
    if (info.peer || !Owns(info.folder)) continue;
    auto survey = Look(info, now_ns);
    if (!survey.ok()) continue;
    for (const Resident& resident : survey->residents) {
      const auto tenant = round->by_tenant.find(resident.indexed.tenant);
      if (tenant == round->by_tenant.end()) continue;
      // What is pinned stays until the operator says otherwise.
      if (resident.indexed.retention == RetentionClass::kPinned) continue;
      tenant->second.push_back({resident, info.id, UsesPerMinute(resident.indexed, now_ns)});
    }
    round->surveys.emplace(info.id, *std::move(survey));
  }
  for (auto& [tenant, candidates] : round->by_tenant) {
    std::ranges::sort(candidates, QuotaRound::GoesBefore);
  }
}

void Janitor::DropExcess(const QuotaExcess& excess, QuotaRound* round) {
  auto& candidates = round->by_tenant.at(excess.tenant);
  const auto counts = [&](const QuotaRound::Candidate& candidate) {
    return !excess.retention || candidate.resident.indexed.retention == *excess.retention;
  };
  const int64_t ours = std::ranges::count_if(candidates, counts);
  const int64_t too_many = excess.blocks - (excess.retention ? 0 : round->gone[excess.tenant]);
  // Of a shared root every owner gives its part.
  int64_t left = std::min(ours, (too_many * ours + excess.held - 1) / excess.held);
  std::erase_if(candidates, [&](const QuotaRound::Candidate& candidate) {
    if (left <= 0 || !counts(candidate)) return false;
    --left;
    const Resident& resident = candidate.resident;
    const auto retention = static_cast<size_t>(resident.indexed.retention);
    context_->Forget(resident.entry.key, resident.indexed, MissReason::kEvictedEarly);
    ++context_->counters.quota_evictions[retention];
    if (resident.live) ++context_->counters.retention_breaches[retention];
    round->dropped[candidate.segment].push_back(DropEntry(resident.entry));
    ++round->gone[excess.tenant];
    return true;
  });
}

// What a log does not take comes back at the next start, and leaves again.
void Janitor::LogDropped(const QuotaRound& round) {
  std::map<std::string, std::vector<IndexEntry>> by_folder;
  for (const auto& [segment, entries] : round.dropped) {
    auto& in_folder = by_folder[round.surveys.at(segment).info.folder];
    in_folder.insert(in_folder.end(), entries.begin(), entries.end());
  }
  for (const auto& [folder, entries] : by_folder) {
    const auto log = LogOf(folder);
    const Status logged = log.ok() ? (*log)->Append(entries) : log.status();
    if (!logged.ok()) {
      Log(LogLevel::kWarning, "kv.index_log", {{"path", folder}, {"status", logged}});
    }
  }
}

}  // namespace deepinfer
