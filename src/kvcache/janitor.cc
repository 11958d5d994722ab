#include "kvcache/janitor.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kvcache/segment_file.h"
#include "kvcache/strays.h"

namespace deepinfer {
namespace {

constexpr int64_t kUsPerHour = int64_t{3600} * 1'000'000;
constexpr int64_t kJumpNs = kNsPerHour;
// Peers have to hear of uses sooner than a process has to remember its own.
constexpr int64_t kSharedExchangeUs = int64_t{300} * 1'000'000;
// For so long after its bucket a segment that cannot be read is tried again.
constexpr int64_t kUnreadableHours = 24;
constexpr int64_t kFreezeUs = int64_t{600} * 1'000'000;

JanitorAction Describe(const SegmentInfo& info, const char* action, const char* reason,
                       int64_t live) {
  return {info.path, action, reason, live, info.num_records};
}

bool IsOver(const SegmentInfo& info, int64_t now_ns) {
  return info.superblock.bucket_hour != kNoBucket &&
         BucketNs(info.superblock.bucket_hour) <= now_ns;
}

}  // namespace

void Janitor::Own(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  owned_.insert(folder);
}

bool Janitor::Owns(const std::string& folder) const {
  const std::lock_guard lock(mutex_);
  return owned_.contains(folder);
}

std::vector<std::string> Janitor::OwnedFolders() const {
  const std::lock_guard lock(mutex_);
  return {owned_.begin(), owned_.end()};
}

void Janitor::DisownAll() {
  const std::lock_guard lock(mutex_);
  owned_.clear();
  logs_.clear();
}

void Janitor::RewriteSoon(uint32_t segment) {
  context_->segments.Update(segment, [](SegmentInfo* info) { info->rewrite = true; });
}

std::vector<SegmentInfo> Janitor::OwnedSealed() const {
  std::vector<SegmentInfo> sealed = context_->segments.List();
  std::erase_if(sealed, [&](const SegmentInfo& info) {
    return info.state == SegmentState::kOpen || info.written || !Owns(info.folder);
  });
  return sealed;
}

Result<Janitor::Survey> Janitor::Look(const SegmentInfo& info, int64_t now_ns) const {
  DI_ASSIGN_OR_RETURN(auto content, ReadOwnSegment(context_->files, info));
  Survey survey;
  survey.info = info;
  survey.layout = content.layout;
  survey.is_complete = content.from_footer;
  for (size_t i = 0; i < content.entries.size(); ++i) {
    auto indexed = context_->index.Find(content.entries[i].key);
    const BlockLocation here{info.id, static_cast<uint32_t>(i)};
    if (!indexed || indexed->location != here) continue;
    if (const auto told = touch_log_.TellAbout(here); told.minute > indexed->touched_minute) {
      context_->index.SetTouched(content.entries[i].key, told.minute, told.touches);
      indexed->touched_minute = told.minute;
      indexed->touches = std::max(indexed->touches, told.touches);
    }
    Resident resident{content.entries[i], *indexed, here.record};
    const int64_t deadline_ns = DeadlineNs(*indexed);
    resident.live = deadline_ns > now_ns && info.state != SegmentState::kQuarantined;
    if (resident.live) {
      ++survey.num_live;
      survey.last_deadline_ns = std::max(survey.last_deadline_ns, deadline_ns);
      resident.value = ValueOf(*indexed, resident.entry.tenant_tag, now_ns);
    }
    survey.residents.push_back(resident);
  }
  return survey;
}

Janitor::Survey Janitor::LookInLog(const SegmentInfo& info, int64_t now_ns) const {
  Survey survey;
  survey.info = info;
  survey.is_complete = false;
  const auto adds = ReadAdds(context_->files, info.folder, static_cast<uint32_t>(info.number));
  if (!adds.ok()) return survey;
  for (const IndexEntry& entry : *adds) {
    const auto indexed = context_->index.Find(entry.key);
    if (!indexed || indexed->location.segment != info.id) continue;
    survey.residents.push_back(
        {entry, *indexed, indexed->location.record, DeadlineNs(*indexed) > now_ns, 0});
  }
  return survey;
}

int64_t Janitor::DeadlineNs(const IndexedBlock& block) const {
  return context_->Policy(block.retention).DeadlineNs(StoreMinuteToUnixNs(block.touched_minute));
}

double Janitor::ValueOf(const IndexedBlock& block, uint64_t tenant_tag, int64_t now_ns) const {
  const bool is_over =
      context_->quotas.any() && context_->quotas.IsOver(block.tenant, tenant_tag, block.retention);
  return is_over ? 0 : UsesPerMinute(block, now_ns);
}

double Janitor::UsesPerMinute(const IndexedBlock& block, int64_t now_ns) const {
  const int64_t rested_minutes =
      std::max<int64_t>(0, int64_t{StoreMinute(now_ns)} - block.touched_minute);
  // What has rested for long will rest for about as long again before it is used, if it ever is:
  // its place is worth that much less. Touches are known to the minute, so half of one is added.
  constexpr double kHalfMinute = 0.5;
  // Not times the cost of computing it, which grows with its depth: of a chain the first blocks
  // would go first, and those behind them would be of no use.
  return context_->reuse.ChanceOfReuse(block.retention, block.touches, rested_minutes) /
         (static_cast<double>(rested_minutes) + kHalfMinute);
}

bool Janitor::ExpiryFrozen(int64_t now_ns) {
  const int64_t now_us = context_->clock->NowUs();
  const std::lock_guard lock(mutex_);
  if (last_unix_ns_ != 0) {
    const int64_t jump_ns = (now_ns - last_unix_ns_) - (now_us - last_us_) * 1000;
    if (jump_ns > kJumpNs) {
      ++context_->counters.clock_jumps;
      frozen_until_us_ = now_us + kFreezeUs;
      Log(LogLevel::kWarning, "kv.clock_jump", {{"seconds", jump_ns / 1'000'000'000}});
    }
  }
  last_unix_ns_ = now_ns;
  last_us_ = now_us;
  return now_us < frozen_until_us_;
}

std::vector<JanitorAction> Janitor::Step() {
  const int64_t now_ns = context_->wall_clock->UnixNs();
  const int64_t now_us = context_->clock->NowUs();
  const bool frozen = ExpiryFrozen(now_ns);
  if (const Status status = context_->keys->Reload(); !status.ok()) {
    Log(LogLevel::kWarning, "kv.key_file", {{"status", status}});
  }
  // Before anything expires: a peer may have used it.
  const int64_t exchange_us = context_->options.shared ? kSharedExchangeUs : kUsPerHour;
  if (now_us - touches_exchanged_us_ >= exchange_us) {
    ExchangeTouches();
    touches_exchanged_us_ = now_us;
  }
  if (now_us - strays_removed_us_ >= kUsPerHour) {
    (void)RemoveOldStrays(context_, OwnedFolders());
    strays_removed_us_ = now_us;
  }
  std::vector<JanitorAction> actions;
  for (const SegmentInfo& info : OwnedSealed()) Tend(info, now_ns, !frozen, &actions);
  if (IsShortOfSpace()) {
    for (JanitorAction& action : FreeSpace(context_->options.high_water_free_share, false)) {
      actions.push_back(std::move(action));
    }
  }
  // Behind the pressure, which takes of tenants over their quota first.
  EnforceQuotas(now_ns, &actions);
  if (now_us - halved_us_ >= 24 * kUsPerHour) {
    if (halved_us_ != 0) context_->reuse.Halve();
    halved_us_ = now_us;
  }
  return actions;
}

void Janitor::Tend(const SegmentInfo& info, int64_t now_ns, bool may_expire,
                   std::vector<JanitorAction>* actions) {
  const bool expires = may_expire && IsOver(info, now_ns);
  if (!info.draining && !info.rewrite) {
    if (expires) Expire(info, now_ns, false, actions);
    return;
  }
  const auto survey = Look(info, now_ns);
  if (!survey.ok()) {
    if (expires) RemoveIfLost(info, survey.status().code(), now_ns);
  } else if (info.draining) {
    ContinueDraining(*survey);
  } else {
    actions->push_back(Describe(info, "copy_forward", "erased", survey->num_live));
    CopyForward(*survey);
  }
}

std::vector<JanitorAction> Janitor::Plan() {
  const int64_t now_ns = context_->wall_clock->UnixNs();
  std::vector<JanitorAction> actions;
  for (const SegmentInfo& info : OwnedSealed()) {
    if (IsOver(info, now_ns)) Expire(info, now_ns, true, &actions);
  }
  return actions;
}

void Janitor::RemoveIfLost(const SegmentInfo& info, StatusCode fault, int64_t now_ns) {
  // Gone or broken beyond reading: nothing of it can be served. A disk that fails for a moment is
  // asked again.
  const bool is_lost =
      fault == StatusCode::kNotFound || fault == StatusCode::kDataCorruption ||
      now_ns - kUnreadableHours * kNsPerHour >= BucketNs(info.superblock.bucket_hour);
  if (!is_lost) return;
  Remove(LookInLog(info, now_ns));
}

void Janitor::Expire(const SegmentInfo& info, int64_t now_ns, bool dry_run,
                     std::vector<JanitorAction>* actions) {
  const auto survey = Look(info, now_ns);
  if (!survey.ok()) {
    if (!dry_run) RemoveIfLost(info, survey.status().code(), now_ns);
    return;
  }
  const bool move = survey->num_live > 0 &&
                    static_cast<double>(survey->num_live) >
                        context_->options.move_bucket_live_share *
                            static_cast<double>(std::max<int64_t>(info.num_records, 1)) &&
                    MayMoveBucket(*survey);
  // Copies wear the device too: while the budget is overdrawn the file stays as it is.
  const bool wait =
      !move && survey->num_live > 0 && context_->write_budget.Level(context_->clock->NowUs()) < 0;
  const char* action = survey->num_live == 0 ? "remove"
                       : move                ? "move_bucket"
                       : wait                ? "wait"
                                             : "copy_forward";
  actions->push_back(Describe(info, action, "expired", survey->num_live));
  if (dry_run) return;
  for (const Resident& resident : survey->residents) {
    if (resident.live) continue;
    context_->Forget(resident.entry.key, resident.indexed, MissReason::kExpired);
    ++context_->counters.expired_blocks;
  }
  if (survey->num_live == 0) return Remove(*survey);
  if (wait) return;
  if (!move) return CopyForward(*survey);
  Superblock superblock = info.superblock;
  const uint64_t bucket_hour = context_->Policy(static_cast<RetentionClass>(superblock.retention))
                                   .BucketOf(survey->last_deadline_ns);
  const Status status = RewriteBucket(context_->files, info.path, &superblock, bucket_hour);
  if (!status.ok()) {
    Log(LogLevel::kWarning, "kv.bucket_not_moved", {{"path", info.path}, {"status", status}});
    return;
  }
  ++context_->counters.moved_buckets;
  context_->segments.Update(info.id, [&](SegmentInfo* i) { i->superblock = superblock; });
}

// Records with a deadline of their own must leave when it comes, so their segment may not stay.
bool Janitor::MayMoveBucket(const Survey& survey) {
  const auto file = context_->segments.OpenForRead(survey.info.id);
  if (!file.ok()) return false;
  PageBuffer page(kPageBytes);
  if (!page.ok()) return false;
  return std::ranges::all_of(survey.residents, [&](const Resident& resident) {
    if (!resident.live) return true;
    const Status status =
        ReadExactly(file->get(), page.bytes(), survey.layout.RecordOffset(resident.record));
    if (!status.ok()) return false;
    const RecordHeader header = FromBytes<RecordHeader>(page.bytes());
    return header.IsIntact() && (header.flags & kRecordAbsoluteDeadline) == 0;
  });
}

void Janitor::CopyForward(const Survey& survey) {
  context_->segments.Update(survey.info.id, [](SegmentInfo* info) { info->draining = true; });
  for (const Resident& resident : survey.residents) {
    if (!resident.live || writes_->IsPending(resident.entry.key)) continue;
    BlockWrite write;
    const BlockRequest request{resident.entry.key, resident.entry.block_number, resident.indexed};
    // A record that fails its check is dropped there.
    if (!loader_->ReadNow(request, &write.record).ok()) continue;
    write.header = FromBytes<RecordHeader>(write.record.bytes());
    const bool absolute = (write.header.flags & kRecordAbsoluteDeadline) != 0;
    const int64_t touched_ns = StoreMinuteToUnixNs(resident.indexed.touched_minute);
    if (absolute && survey.info.superblock.bucket_hour != kNoBucket) {
      // Its deadline is the segment's; copying is only to get rid of neighbours.
      write.deadline_ns = BucketNs(survey.info.superblock.bucket_hour);
      if (write.deadline_ns <= context_->wall_clock->UnixNs()) {
        context_->Forget(resident.entry.key, resident.indexed, MissReason::kExpired);
        ++context_->counters.expired_blocks;
        continue;
      }
    } else {
      write.header.created_ns = static_cast<uint64_t>(touched_ns);
      write.deadline_ns = context_->Policy(resident.indexed.retention).DeadlineNs(touched_ns);
    }
    write.header.retention = static_cast<uint8_t>(resident.indexed.retention);
    write.header.flags |= kRecordCopiedForward;
    write.copy_of = resident.indexed.location;
    // Erased neighbours have to leave the disk in time, whatever that wears it.
    if (survey.info.rewrite) {
      context_->write_budget.ChargeOrdered(context_->clock->NowUs());
    } else if (!context_->write_budget.AdmitCopy(context_->clock->NowUs())) {
      return;  // the rest in later rounds
    }
    (void)writes_->Enqueue(std::move(write));
  }
}

void Janitor::ContinueDraining(const Survey& survey) {
  if (survey.num_live == 0) return Remove(survey);
  // Copies that were lost on the way are made again.
  CopyForward(survey);
}

void Janitor::ForgetEvicted(const Resident& resident) {
  if (resident.live) {
    ++context_->counters.retention_breaches[static_cast<size_t>(resident.indexed.retention)];
  }
  context_->Forget(resident.entry.key, resident.indexed,
                   resident.live ? MissReason::kEvictedEarly : MissReason::kExpired);
}

void Janitor::Remove(const Survey& survey) {
  for (const Resident& resident : survey.residents) ForgetEvicted(resident);
  if (!survey.is_complete) {
    const int64_t now_ns = context_->wall_clock->UnixNs();
    for (const IndexedBlock& block : context_->ForgetSegments({survey.info.id})) {
      if (DeadlineNs(block) <= now_ns) continue;
      ++context_->counters.retention_breaches[static_cast<size_t>(block.retention)];
    }
  }
  const auto number = static_cast<uint32_t>(survey.info.number);
  const auto log = LogOf(survey.info.folder);
  const Status logged =
      log.ok() ? (*log)->AppendSegmentOp(IndexOp::kSegmentRemoved, number) : log.status();
  const Status removed = context_->files->Remove(survey.info.path);
  if (!logged.ok() || !removed.ok()) {
    Log(LogLevel::kWarning, "kv.segment_removal",
        {{"path", survey.info.path}, {"log", logged}, {"remove", removed}});
  }
  context_->segments.Remove(survey.info.id);
  touch_log_.Forget(survey.info.id);
  ++context_->counters.removed_segments;
}

Result<std::shared_ptr<IndexLog>> Janitor::LogOf(const std::string& folder) {
  if (auto log = writes_->LogFor(folder)) return log;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = logs_.find(folder); it != logs_.end()) return it->second;
  }
  DI_ASSIGN_OR_RETURN(std::shared_ptr<IndexLog> log, IndexLog::Open(context_->files, folder));
  const std::lock_guard lock(mutex_);
  // Two handles on one log would not know of each other's entries: the first one stays.
  return logs_.emplace(folder, std::move(log)).first->second;
}

Status Janitor::AppendErasure(const std::string& folder, const IndexEntry& erasure) {
  DI_ASSIGN_OR_RETURN(const auto log, LogOf(folder));
  return log->AppendErasures({&erasure, 1});
}

void Janitor::ExchangeTouches() {
  touch_log_.Write(writes_->folder());
  if (context_->options.shared) touch_log_.ReadPeers(OwnedFolders());
}

}  // namespace deepinfer
