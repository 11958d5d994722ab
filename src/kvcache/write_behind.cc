#include "kvcache/write_behind.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "kvcache/record_cipher.h"

namespace deepinfer {
namespace {

// Copies and absolute deadlines still write to earlier buckets; without any for this long the
// segment will not fill up.
constexpr int64_t kBucketGraceUs = int64_t{60} * 1'000'000;

constexpr int64_t kNewFolderPauseUs = 1'000'000;

}  // namespace

WriteBehind::WriteBehind(StoreContext* context, WriteTarget target, NewTarget new_target)
    : context_(context), new_target_(std::move(new_target)), target_(std::move(target)) {}

std::string WriteBehind::folder() const {
  const std::lock_guard lock(mutex_);
  return target_.folder();
}

std::shared_ptr<IndexLog> WriteBehind::LogFor(const std::string& folder) const {
  const std::lock_guard lock(mutex_);
  return target_.folder() == folder ? target_.log : nullptr;
}

PublishResult WriteBehind::Enqueue(BlockWrite write) {
  const auto size = static_cast<int64_t>(write.record.bytes().size());
  const std::lock_guard lock(mutex_);
  const bool is_copy = write.copy_of.has_value();
  // The newest write is the one to drop: older ones are nearer to being useful.
  if (!is_copy && queued_bytes_ + size > context_->options.write_queue_bytes) {
    context_->counters.CountDrop(DropReason::kQueueFull);
    context_->write_budget.Refund();
    return PublishResult::kDroppedFull;
  }
  const Pending pending{write.reserved_for, static_cast<RetentionClass>(write.header.retention)};
  if (!pending_.emplace(write.header.key, pending).second) {
    ++context_->counters.already_stored;
    context_->write_budget.Refund();
    return PublishResult::kExists;
  }
  queued_bytes_ += size;
  write.serial = next_serial_++;
  queue_.push_back(std::move(write));
  ++context_->counters.published;
  work_.notify_one();
  return PublishResult::kQueued;
}

bool WriteBehind::IsPending(const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  return pending_.contains(key);
}

int64_t WriteBehind::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_;
}

bool WriteBehind::busy() const {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

void WriteBehind::WaitForWork(int64_t wait_us) {
  std::unique_lock lock(mutex_);
  work_.wait_for(lock, std::chrono::microseconds(wait_us), [&] { return !queue_.empty(); });
}

void WriteBehind::Wake() { work_.notify_all(); }

void WriteBehind::Step() {
  if ((fenced_ || fence_suspected_) && !HoldsFolder()) return;
  WriteQueued();
  const int64_t age_us = context_->clock->NowUs() - group_began_us_;
  if (!group_.empty() && (age_us >= context_->options.group_commit_us ||
                          group_bytes_ >= context_->options.group_commit_bytes)) {
    Commit();
  }
  SealStale();
}

void WriteBehind::Flush(bool seal) {
  WriteQueued();
  Commit();
  while (seal && !open_.empty()) Seal(open_.back().id);
}

void WriteBehind::WriteQueued() {
  for (;;) {
    std::unique_lock lock(mutex_);
    if (queue_.empty()) return;
    BlockWrite write = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const auto size = static_cast<int64_t>(write.record.bytes().size());
    Write(std::move(write));
    lock.lock();
    queued_bytes_ -= size;
    lock.unlock();
    if (group_bytes_ >= context_->options.group_commit_bytes) Commit();
  }
}

void WriteBehind::Write(BlockWrite write) {
  RecordHeader& header = write.header;
  const auto drop_unwritten = [&](DropReason reason = DropReason::kError) {
    context_->write_budget.Refund();
    Drop(header.key, reason);
  };
  if (fenced_) return drop_unwritten();
  {
    const std::lock_guard lock(mutex_);
    if (IsUnwanted(header.key, header.tenant_tag, write.serial)) {
      context_->write_budget.Refund();
      Leave(header.key);
      return;
    }
  }
  const auto retention = static_cast<RetentionClass>(header.retention);
  OpenSegment* segment =
      SegmentFor(retention, context_->Policy(retention).BucketOf(write.deadline_ns));
  if (segment == nullptr) {
    return drop_unwritten(MayCreateSegment() ? DropReason::kError : DropReason::kNoSpace);
  }
  header.writer_id = target_.epoch;
  header.sequence = next_sequence_++;
  if (!SealForDisk(&write)) return drop_unwritten();
  const int64_t place = segment->writer->num_records();
  const Result<IndexEntry> entry = segment->writer->Append(write.record.bytes());
  if (!entry.ok()) {
    Abandon(segment->id, entry.status());
    return Drop(header.key);
  }
  segment->dirty = true;
  segment->last_write_us = context_->clock->NowUs();
  if (group_.empty()) group_began_us_ = segment->last_write_us;
  group_bytes_ += static_cast<int64_t>(write.record.bytes().size());
  group_.push_back({*entry, segment->id, static_cast<uint32_t>(place),
                    StoreMinute(static_cast<int64_t>(header.created_ns)),
                    (header.flags & kRecordAbsoluteDeadline) != 0, write.copy_of, write.serial});
}

// With the key of the tenant if it has one. False when it had one and has lost it: then nothing of
// it may reach the disk.
bool WriteBehind::SealForDisk(BlockWrite* write) const {
  const KvBlockLayout& layout = context_->options.layout;
  RecordHeader& header = write->header;
  const bool was_encrypted = (header.flags & kRecordEncrypted) != 0;
  header.flags &= ~kRecordEncrypted;
  header.nonce = {};
  header.tag = {};
  const auto key = context_->keys->Find(header.tenant_tag);
  if (!key) {
    const bool plain = context_->keys->SecrecyOf(header.tenant_tag) == TenantSecrecy::kPlain;
    if (was_encrypted || !plain) return false;
    SealRecord(layout, header, write->record.bytes());
    return true;
  }
  const auto nonce = NewNonce();
  const Status sealed =
      nonce.ok() ? SealEncryptedRecord(layout, header, *key, *nonce, write->record.bytes())
                 : nonce.status();
  if (!sealed.ok()) Log(LogLevel::kError, "kv.encryption", {{"status", sealed}});
  return sealed.ok();
}

WriteBehind::OpenSegment* WriteBehind::SegmentFor(RetentionClass retention, uint64_t bucket_hour) {
  for (OpenSegment& open : open_) {
    const Superblock& superblock = open.writer->superblock();
    if (superblock.retention != static_cast<uint8_t>(retention) ||
        superblock.bucket_hour != bucket_hour) {
      continue;
    }
    const uint32_t id = open.id;
    // What is written behind broken records would not be read.
    const auto info = context_->segments.Find(id);
    const bool quarantined = info && info->state == SegmentState::kQuarantined;
    if (!open.writer->full() && !quarantined) return &open;
    Commit();
    Seal(id);
    break;
  }
  if (open_.size() >= kMaxOpenSegments) {
    const uint32_t id = std::ranges::min_element(open_, {}, &OpenSegment::last_write_us)->id;
    Commit();
    Seal(id);
  }
  return CreateSegment(retention, bucket_hour);
}

Superblock WriteBehind::NewSuperblock(RetentionClass retention, uint64_t bucket_hour) {
  Superblock superblock =
      MakeSuperblock(context_->options.layout, context_->options.namespace_id, retention);
  superblock.writer_id = target_.epoch;
  superblock.segment_number = next_segment_++;
  superblock.created_ns = static_cast<uint64_t>(context_->wall_clock->UnixNs());
  superblock.bucket_hour = bucket_hour;
  superblock.Seal();
  return superblock;
}

// Copies of what the janitor wants to keep need room before it has removed anything, and so do the
// segments that stay open.
bool WriteBehind::MayCreateSegment() {
  const KvStoreOptions& options = context_->options;
  const int64_t segment_bytes = options.layout.segment_bytes();
  const int64_t bytes = (context_->segments.num_own() + 1) * segment_bytes;
  if (bytes > options.space_bytes) wants_room_ = true;
  return bytes <= options.space_bytes + int64_t{kMaxOpenSegments} * segment_bytes;
}

WriteBehind::OpenSegment* WriteBehind::CreateSegment(RetentionClass retention,
                                                     uint64_t bucket_hour) {
  if (!MayCreateSegment()) return nullptr;
  const Superblock superblock = NewSuperblock(retention, bucket_hour);
  auto writer = SegmentWriter::Create(context_->files, target_.folder(), context_->options.layout,
                                      superblock, context_->options.direct_io);
  if (!writer.ok()) {
    ++context_->counters.write_errors;
    Log(LogLevel::kWarning, "kv.segment_not_created", {{"status", writer.status()}});
    return nullptr;
  }
  SegmentInfo info;
  info.path = (*writer)->path();
  info.folder = target_.folder();
  info.number = superblock.segment_number;
  info.superblock = superblock;
  info.state = SegmentState::kOpen;
  info.written = true;
  OpenSegment open;
  open.writer = *std::move(writer);
  open.id = context_->segments.Add(std::move(info));
  open.last_write_us = context_->clock->NowUs();
  open_.push_back(std::move(open));
  return &open_.back();
}

void WriteBehind::Commit() {
  if (group_.empty() || !HoldsFolder()) return;
  const int64_t begin_us = context_->clock->NowUs();
  for (size_t i = 0; i < open_.size();) {
    if (open_[i].dirty) {
      if (const Status status = open_[i].writer->Sync(); !status.ok()) {
        // Takes its blocks out of the group.
        Abandon(open_[i].id, status);
        continue;
      }
      open_[i].dirty = false;
    }
    ++i;
  }
  std::vector<IndexEntry> entries;
  for (const Uncommitted& block : group_) {
    // Listed behind its erasure it would look as if it had been added again.
    if (!IsErased(block)) entries.push_back(block.entry);
  }
  if (const Status status = target_.log->Append(entries); !status.ok()) {
    ++context_->counters.write_errors;
    Log(LogLevel::kWarning, "kv.index_log", {{"status", status}});
    // Without the log an erasure could not be told from an earlier write: give the group up.
    for (const Uncommitted& block : group_) Drop(block.entry.key);
  } else {
    for (const Uncommitted& block : group_) Publish(block);
    EraseUnwanted(group_);
  }
  context_->counters.commit_times.Add(context_->clock->NowUs() - begin_us);
  group_.clear();
  group_bytes_ = 0;
}

bool WriteBehind::HoldsFolder() {
  if (!context_->options.shared) return true;
  const int64_t now_us = context_->clock->NowUs();
  if (!fenced_) {
    fence_suspected_ = false;
    const auto folder = context_->files->Stat(target_.folder());
    const bool gone = folder.status().code() == StatusCode::kNotFound ||
                      (folder.ok() && folder->inode != target_.inode);
    // A file system that does not answer is no proof; the writes that follow will tell.
    if (!gone) return true;
    Log(LogLevel::kWarning, "kv.folder_adopted_by_a_peer", {{"path", target_.folder()}});
    ++context_->counters.fenced;
    fenced_ = true;
    retry_us_ = now_us;
    for (const Uncommitted& block : group_) Drop(block.entry.key);
    group_.clear();
    group_bytes_ = 0;
    open_.clear();
  }
  if (now_us < retry_us_) return false;
  auto target = new_target_();
  if (!target.ok()) {
    Log(LogLevel::kWarning, "kv.no_new_folder", {{"status", target.status()}});
    retry_us_ = now_us + kNewFolderPauseUs;
    return false;
  }
  const std::lock_guard lock(mutex_);
  target_ = *std::move(target);
  next_sequence_ = 1;
  next_segment_ = 1;
  fenced_ = false;
  return true;
}

void WriteBehind::Discard(std::span<const BlockKey> keys) {
  const std::lock_guard lock(mutex_);
  for (const BlockKey& key : keys) {
    if (pending_.contains(key)) unwanted_keys_[key] = next_serial_;
  }
}

void WriteBehind::DiscardTenant(uint64_t tenant_tag) {
  const std::lock_guard lock(mutex_);
  if (!pending_.empty()) unwanted_tenants_[tenant_tag] = next_serial_;
}

bool WriteBehind::IsUnwanted(const BlockKey& key, uint64_t tenant_tag, uint64_t serial) const {
  const auto by_key = unwanted_keys_.find(key);
  if (by_key != unwanted_keys_.end() && serial < by_key->second) return true;
  const auto by_tenant = unwanted_tenants_.find(tenant_tag);
  return by_tenant != unwanted_tenants_.end() && serial < by_tenant->second;
}

// The erasure stands in the log before the blocks it means: it is said again behind them.
void WriteBehind::EraseUnwanted(std::span<const Uncommitted> group) {
  std::vector<IndexEntry> erasures;
  {
    const std::lock_guard lock(mutex_);
    for (const Uncommitted& block : group) {
      if (!IsUnwanted(block.entry.key, block.entry.tenant_tag, block.serial)) continue;
      erasures.push_back(EraseKeyEntry(block.entry.key, context_->wall_clock->UnixNs()));
    }
    if (pending_.empty()) {
      unwanted_keys_.clear();
      unwanted_tenants_.clear();
    }
  }
  if (erasures.empty()) return;
  if (const Status status = target_.log->AppendErasures(erasures); !status.ok()) {
    Log(LogLevel::kWarning, "kv.index_log", {{"status", status}});
  }
}

bool WriteBehind::IsErased(const Uncommitted& block) const {
  const std::lock_guard lock(mutex_);
  return IsUnwanted(block.entry.key, block.entry.tenant_tag, block.serial);
}

void WriteBehind::Publish(const Uncommitted& block) {
  const BlockLocation location{block.segment, block.record};
  if (IsErased(block)) {
    ++context_->counters.erased_blocks;
    context_->segments.Update(block.segment, [](SegmentInfo* info) { info->rewrite = true; });
  } else if (block.copy_of) {
    // False when the block was erased or dropped meanwhile: then the copy is not wanted either.
    if (context_->index.Move(block.entry.key, *block.copy_of, location)) {
      ++context_->counters.copied_blocks;
    }
  } else {
    IndexedBlock indexed;
    indexed.location = location;
    indexed.retention = static_cast<RetentionClass>(block.entry.retention);
    indexed.absolute_deadline = block.absolute_deadline;
    indexed.replay_gen = static_cast<uint8_t>(std::min<uint16_t>(block.entry.replay_gen, 255));
    indexed.tenant = context_->tenants.SlotOf(block.entry.tenant_tag);
    indexed.touched_minute = block.touched_minute;
    if (context_->Enter(block.entry.key, indexed)) ++context_->counters.written_blocks;
  }
  context_->segments.Update(block.segment, [&](SegmentInfo* info) {
    info->num_records = std::max<int64_t>(info->num_records, int64_t{block.record} + 1);
  });
  const std::lock_guard lock(mutex_);
  Leave(block.entry.key);
}

WriteBehind::OpenSegment WriteBehind::TakeOpen(uint32_t id) {
  const auto it = std::ranges::find(open_, id, &OpenSegment::id);
  if (it == open_.end()) return {};
  OpenSegment taken = std::move(*it);
  open_.erase(it);
  return taken;
}

void WriteBehind::Seal(uint32_t id) {
  const OpenSegment segment = TakeOpen(id);
  if (segment.writer == nullptr) return;  // abandoned by the commit before
  const auto now_ns = static_cast<uint64_t>(context_->wall_clock->UnixNs());
  if (const Status status = segment.writer->Seal(now_ns); !status.ok()) {
    // Its committed records are found by a scan at the next start.
    Log(LogLevel::kWarning, "kv.segment_not_sealed",
        {{"path", segment.writer->path()}, {"status", status}});
    return GiveUp(id);
  }
  context_->segments.Update(id, [&](SegmentInfo* info) {
    if (info->state == SegmentState::kOpen) info->state = SegmentState::kSealed;
    info->written = false;
    info->path = segment.writer->path();
  });
  ++context_->counters.sealed_segments;
  const auto number = static_cast<uint32_t>(segment.writer->superblock().segment_number);
  if (const Status status = target_.log->AppendSegmentOp(IndexOp::kSegmentSealed, number);
      !status.ok()) {
    // Peers notice the new name at their next look at the folder.
    Log(LogLevel::kWarning, "kv.index_log", {{"status", status}});
  }
}

void WriteBehind::SealStale() {
  const int64_t now_us = context_->clock->NowUs();
  const int64_t now_ns = context_->wall_clock->UnixNs();
  for (size_t i = open_.size(); i-- > 0;) {
    const OpenSegment& segment = open_[i];
    if (segment.dirty) continue;
    // New blocks of the class go to a later bucket by now.
    const RetentionPolicy& policy =
        context_->Policy(static_cast<RetentionClass>(segment.writer->superblock().retention));
    const bool bucket_over =
        segment.writer->superblock().bucket_hour < policy.BucketOf(policy.DeadlineNs(now_ns));
    const bool idle = now_us - segment.last_write_us >= context_->options.seal_idle_us;
    if (idle || (bucket_over && now_us - segment.last_write_us >= kBucketGraceUs)) {
      Seal(segment.id);
    }
  }
}

void WriteBehind::Abandon(uint32_t id, const Status& status) {
  const OpenSegment segment = TakeOpen(id);
  Log(LogLevel::kWarning, "kv.segment_abandoned",
      {{"path", segment.writer->path()}, {"status", status}});
  // Blocks that no sync covered may not be on disk.
  for (const Uncommitted& block : group_) {
    if (block.segment == id) Drop(block.entry.key);
  }
  std::erase_if(group_, [&](const Uncommitted& block) { return block.segment == id; });
  GiveUp(id);
}

// Nobody writes to the segment any more: it expires like a sealed one, also under the name that a
// renaming which was reported as failed may have given it.
void WriteBehind::GiveUp(uint32_t id) {
  ++context_->counters.write_errors;
  const auto info = context_->segments.Find(id);
  if (!info) return;
  const std::string sealed = info->path.substr(0, info->path.rfind('.')) + ".seg";
  const bool renamed = context_->files->Stat(info->path).status().code() == StatusCode::kNotFound &&
                       context_->files->Stat(sealed).ok();
  context_->segments.Update(id, [&](SegmentInfo* i) {
    if (i->state == SegmentState::kOpen) i->state = SegmentState::kSealed;
    i->written = false;
    if (renamed) i->path = sealed;
  });
}

void WriteBehind::Drop(const BlockKey& key, DropReason reason) {
  context_->counters.CountDrop(reason);
  const std::lock_guard lock(mutex_);
  Leave(key);
}

void WriteBehind::Leave(const BlockKey& key) {
  const auto it = pending_.find(key);
  if (it == pending_.end()) return;
  const Pending& pending = it->second;
  if (pending.reserved_for) context_->quotas.Settle(*pending.reserved_for, pending.retention);
  pending_.erase(it);
}

}  // namespace deepinfer
