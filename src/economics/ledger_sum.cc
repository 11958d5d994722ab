#include "economics/ledger_sum.h"

#include <tuple>
#include <utility>

namespace deepinfer {

void LedgerTotals::Add(const LedgerTokens& tokens) {
  prompt += tokens.prompt;
  cached += tokens.cached;
  computed += tokens.computed;
  replayed += tokens.replayed;
  generated += tokens.generated;
  reasoning += tokens.reasoning;
  wasted += tokens.wasted;
}

void LedgerTotals::Add(const Revenue& earned) {
  hit += earned.hit;
  miss += earned.miss;
  output += earned.output;
  cache_write += earned.cache_write;
  revenue += earned.Total();
}

void LedgerTotals::Add(const Cost& spent) {
  compute += spent.compute;
  storage += spent.storage;
  network += spent.network;
  operations += spent.operations;
  cost += spent.Total();
}

std::vector<std::string> LedgerSum::GroupOf(const LedgerLine& line) const {
  std::vector<std::string> values;
  values.reserve(options_.by.size());
  for (const size_t index : options_.by) values.push_back(line.dimensions[index]);
  return values;
}

void LedgerSum::TakeOverhead(const OverheadRecord& record) {
  if (record.to_utc_us < options_.since_us || record.to_utc_us >= options_.until_us) return;
  OverheadTotals& totals = overhead_[static_cast<size_t>(record.kind)];
  ++totals.lines;
  totals.device_ns += record.device_ns;
  OverheadRecord costed = record;
  if (options_.recost != nullptr) CostOverhead(*options_.recost, &costed);
  if (!costed.cost_book) ++totals.uncosted;
  totals.compute += costed.cost.compute;
  totals.operations += costed.cost.operations;
}

void LedgerSum::Take(const ParsedLine& parsed) {
  if (parsed.kind == LineKind::kGrade) {
    // One checker that fails is enough, whichever line is read first.
    std::string& quality = grades_[parsed.grade.attempt_id];
    if (quality != "fail") quality = parsed.grade.quality;
  }
  if (parsed.kind == LineKind::kOverhead) TakeOverhead(parsed.overhead);
  if (parsed.kind != LineKind::kLedger) return;
  const LedgerLine& line = parsed.ledger;
  const int64_t at = line.time.recv_utc_us;
  if (at < options_.since_us || at >= options_.until_us) return;
  std::vector<std::string> group = GroupOf(line);
  LedgerTotals& totals = groups_[group];
  ++totals.lines;
  totals.Add(line.tokens);
  totals.device_ns +=
      line.resource.prefill_device_ns.value_or(0) + line.resource.decode_device_ns.value_or(0);
  LedgerRecord record;
  record.time = line.time;
  record.tokens = line.tokens;
  record.stream.num_chunks = line.num_chunks;
  record.resource = line.resource;
  record.outcome = line.outcome;
  if (options_.recost != nullptr) {
    CostRecord(*options_.recost, &record);
    totals.Add(record.cost);
  } else if (line.cost) {
    totals.Add(*line.cost);
  } else {
    ++totals.uncosted;
  }
  if (options_.reprice != nullptr) {
    PriceRecord(*options_.reprice, &record);
    totals.Add(record.revenue);
  } else if (line.revenue) {
    totals.Add(*line.revenue);
  } else {
    ++totals.unpriced;
  }
  LastAttempt& last = works_[line.work_id];
  if (!last.attempt_id.empty() &&
      std::tie(at, line.attempt_id) < std::tie(last.recv_utc_us, last.attempt_id)) {
    return;
  }
  last.recv_utc_us = at;
  last.attempt_id = line.attempt_id;
  last.group = std::move(group);
  last.completed = line.outcome.http_status < 400 && !line.outcome.error_code &&
                   line.outcome.cancelled_by == "none";
  last.slo_missed = line.slo_met == false;
  last.quality = line.quality;
}

std::vector<LedgerGroup> LedgerSum::Groups() const {
  std::map<std::vector<std::string>, LedgerTotals> groups = groups_;
  for (const auto& [work_id, last] : works_) {
    LedgerTotals& totals = groups[last.group];
    ++totals.works;
    if (!last.completed) continue;
    ++totals.completed;
    const auto grade = grades_.find(last.attempt_id);
    const std::string& quality = grade == grades_.end() ? last.quality : grade->second;
    if (quality == "pass" && !last.slo_missed) ++totals.qualified;
  }
  std::vector<LedgerGroup> out;
  out.reserve(groups.size());
  for (auto& [values, totals] : groups) out.push_back({values, totals});
  return out;
}

}  // namespace deepinfer
