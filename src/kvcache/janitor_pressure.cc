// Space that runs short: which segments go, and which of their blocks are worth a copy.
//
// A segment holds blocks of one hour, used again or not. Removing it whole would take the few that
// are in use along, so these are copied forward first, as far as that wears the device little.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "kvcache/janitor.h"

namespace deepinfer {
namespace {

// Of as many blocks as the space will hold, the best ones that are worth a copy. The others would
// be the next to go: copies of them would be made in vain.
constexpr double kWorthShare = 0.85;
// Most of a segment that is copied: removing one so writes 0.3 / (1 - 0.3) of what it makes room
// for at most (docs/benchmarks.md §8 has what it comes to on recorded traffic).
constexpr double kMostCopiedShare = 0.3;
// Share of the write budget below which nothing is copied: new blocks come first.
constexpr double kCopyAboveLevel = 0.5;

}  // namespace

// What removing a segment means.
struct Janitor::Removal {
  Survey survey;          // residents from the most valuable one on
  size_t num_copied = 0;  // of them the first
  double loss = 0;        // blocks lost that are worth a copy, by the space that it frees
  double freed = 0;       // of a segment
};

std::vector<Janitor::Removal> Janitor::PlanRemovals(int64_t room_blocks, bool may_copy,
                                                    int64_t now_ns) const {
  std::vector<Removal> removals;
  std::vector<double> values;
  for (const SegmentInfo& info : OwnedSealed()) {
    if (info.superblock.retention == static_cast<uint8_t>(RetentionClass::kPinned)) continue;
    // Its blocks are on their way elsewhere, unless there is no room for that.
    if (info.draining && !IsOverfull()) continue;
    auto survey = Look(info, now_ns);
    if (!survey.ok()) continue;
    std::ranges::sort(survey->residents, std::greater(), &Resident::value);
    for (const Resident& resident : survey->residents) values.push_back(resident.value);
    removals.push_back({*std::move(survey)});
  }
  const auto num_worth = static_cast<size_t>(kWorthShare * static_cast<double>(room_blocks));
  double least_worth = 0;
  if (num_worth < values.size()) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(num_worth);
    std::ranges::nth_element(values, at, std::greater());
    least_worth = *at;
  }
  const auto capacity = static_cast<double>(context_->options.layout.segment_capacity());
  for (Removal& removal : removals) {
    const auto num_worthy = static_cast<size_t>(std::ranges::count_if(
        removal.survey.residents,
        [&](const Resident& resident) { return resident.value > least_worth; }));
    if (may_copy) {
      removal.num_copied = std::min(num_worthy, static_cast<size_t>(kMostCopiedShare * capacity));
    }
    removal.freed = 1 - static_cast<double>(removal.num_copied) / capacity;
    removal.loss = static_cast<double>(num_worthy - removal.num_copied) / removal.freed;
  }
  // Of equals the oldest.
  std::ranges::stable_sort(removals, {}, &Removal::loss);
  return removals;
}

std::vector<JanitorAction> Janitor::FreeSpace(double free_share, bool dry_run) {
  const KvBlockLayout& layout = context_->options.layout;
  const double room = (1.0 - free_share) * static_cast<double>(context_->options.space_bytes) /
                      static_cast<double>(layout.segment_bytes());
  const bool may_copy =
      !IsOverfull() && context_->write_budget.Level(context_->clock->NowUs()) >= kCopyAboveLevel;
  const auto room_blocks =
      static_cast<int64_t>(room * static_cast<double>(layout.segment_capacity()));
  auto used = static_cast<double>(IsOverfull() ? context_->segments.num_own() : NumStaying());
  std::vector<JanitorAction> actions;
  for (Removal& removal : PlanRemovals(room_blocks, may_copy, context_->wall_clock->UnixNs())) {
    if (used <= room) break;
    used -= removal.freed;
    const SegmentInfo& info = removal.survey.info;
    actions.push_back({info.path, removal.num_copied > 0 ? "copy_forward" : "remove", "pressure",
                       removal.survey.num_live, info.num_records});
    if (!dry_run) Carry(&removal);
  }
  return actions;
}

bool Janitor::IsShortOfSpace() const {
  const double used_bytes = static_cast<double>(NumStaying()) *
                            static_cast<double>(context_->options.layout.segment_bytes());
  const double free_share = 1.0 - used_bytes / static_cast<double>(context_->options.space_bytes);
  return IsOverfull() || free_share < context_->options.low_water_free_share;
}

bool Janitor::IsOverfull() const {
  return context_->segments.num_own() * context_->options.layout.segment_bytes() >
         context_->options.space_bytes;
}

int64_t Janitor::NumStaying() const {
  return std::ranges::count_if(context_->segments.List(), [](const SegmentInfo& info) {
    return !info.peer && !info.draining;
  });
}

void Janitor::Carry(Removal* removal) {
  Survey& survey = removal->survey;
  if (removal->num_copied == 0) return Remove(survey);
  const auto rest = std::span(survey.residents).subspan(removal->num_copied);
  for (const Resident& resident : rest) ForgetEvicted(resident);
  survey.residents.resize(removal->num_copied);
  CopyForward(survey);
}

}  // namespace deepinfer
