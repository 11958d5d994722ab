#include "kvcache/kv_store.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

constexpr int64_t kWriterWaitUs = 50'000;
constexpr auto kJanitorPause = std::chrono::seconds(10);
constexpr auto kLeastJanitorPause = std::chrono::seconds(1);

std::unique_ptr<ReadBackend> MakeBackend(const KvStoreOptions& options) {
  if (options.io_threads == 0) return MakeInlineReads();
  if (options.io_uring) {
    auto rings = MakeUringReads(options.io_depth);
    if (rings.ok()) return *std::move(rings);
    Log(LogLevel::kInfo, "kv.no_io_uring", {{"status", rings.status()}});
  }
  return MakeThreadReads(options.io_threads);
}

}  // namespace

KvStore::KvStore(const KvStoreOptions& options, FileSystem* files, const Clock* clock,
                 const WallClock* wall_clock, std::unique_ptr<ReadBackend> backend)
    : context_(options, files, clock, wall_clock),
      opened_us_(clock->NowUs()),
      loader_(&context_, std::move(backend)),
      janitor_(&context_, &loader_),
      eraser_(&context_, &janitor_) {}

Result<std::unique_ptr<KvStore>> KvStore::Open(const KvStoreOptions& options, FileSystem* files,
                                               const Clock* clock, const WallClock* wall_clock) {
  DI_RETURN_IF_ERROR(options.layout.Validate());
  std::unique_ptr<KvStore> store(
      new KvStore(options, files, clock, wall_clock, MakeBackend(options)));
  DI_RETURN_IF_ERROR(store->Begin());
  if (options.background_threads) {
    store->StartThreads();
  } else {
    while (store->LoadNextSegment()) {
    }
  }
  return store;
}

Status KvStore::Begin() {
  const KvStoreOptions& options = context_.options;
  FileSystem* files = context_.files;
  DI_ASSIGN_OR_RETURN(context_.keys, TenantKeys::Open(files, options.key_file));
  DI_RETURN_IF_ERROR(
      PrepareNamespace(files, options.dir, options.namespace_id, options.namespace_text));
  const std::string folder = NamespaceFolder(options.dir, options.namespace_id);
  auto lock = files->Lock(folder + "/" + options.node + ".lock");
  if (lock.status().code() == StatusCode::kResourceExhausted && options.read_only_when_in_use &&
      !options.shared) {
    return BeginReading(folder);
  }
  DI_RETURN_IF_ERROR(lock.status());
  lock_ = *std::move(lock);

  if (options.shared) {
    shared_ = std::make_unique<SharedFolders>(&context_, &janitor_, &eraser_, folder);
  }
  // Before anything is taken over: an adopter has to have a name.
  DI_ASSIGN_OR_RETURN(WriteTarget target, MakeFolder());
  const std::string own = target.folder();
  writes_ = std::make_unique<WriteBehind>(&context_, std::move(target),
                                          [this] { return FolderAfterAdoption(); });
  janitor_.UseWriter(writes_.get());
  eraser_.UseWriter(writes_.get());
  if (shared_ != nullptr) shared_->UseWriter(writes_.get());

  DI_ASSIGN_OR_RETURN(const auto epochs, ListEpochFolders(files, folder));
  for (const EpochFolder& epoch : epochs) {
    if (folder + "/" + epoch.name != own) TakeOver(folder, epoch);
  }
  size_t segments = 0;
  for (const auto& recovery : recoveries_) segments += recovery->remaining();
  context_.index.Reserve(static_cast<int64_t>(segments) * options.layout.segment_capacity());
  return OkStatus();
}

Status KvStore::BeginReading(const std::string& folder) {
  shared_ = std::make_unique<SharedFolders>(&context_, &janitor_, &eraser_, folder);
  shared_->OnlyRead();
  if (!context_.options.background_threads) shared_->Step();
  return OkStatus();
}

Result<WriteTarget> KvStore::MakeFolder() {
  const std::string folder = NamespaceFolder(context_.options.dir, context_.options.namespace_id);
  WriteTarget target;
  DI_ASSIGN_OR_RETURN(target.epoch, RandomEpoch());
  const std::string name = EpochFolderName(context_.options.node, target.epoch);
  const std::string path = folder + "/" + name;
  DI_ASSIGN_OR_RETURN(const bool made, context_.files->MakeDirectory(path));
  if (!made) return Unavailable(path + " exists: the random numbers repeat");
  DI_RETURN_IF_ERROR(context_.files->SyncDirectory(folder));
  DI_ASSIGN_OR_RETURN(target.log, IndexLog::Open(context_.files, path));
  DI_ASSIGN_OR_RETURN(const FileInfo info, context_.files->Stat(path));
  target.inode = info.inode;
  if (shared_ != nullptr) DI_RETURN_IF_ERROR(shared_->Join(name, target.epoch));
  janitor_.Own(path);
  return target;
}

// The lock says that earlier epochs of this node are over: they are ours now.
void KvStore::TakeOver(const std::string& namespace_folder, const EpochFolder& epoch) {
  if (shared_ != nullptr) {
    if (shared_->IsOurEarlier(epoch)) (void)shared_->Adopt(epoch);
    return;
  }
  const auto owner = ParseEpochFolderName(epoch.owner);
  if (!owner || owner->node != context_.options.node) return;
  const std::string path = namespace_folder + "/" + epoch.name;
  if (!Recover(path)) unread_folders_.push_back(path);
}

bool KvStore::Recover(const std::string& folder) {
  auto recovery = std::make_unique<FolderRecovery>(&context_, folder, &context_.erased);
  if (const Status status = recovery->Begin(); !status.ok()) {
    Log(LogLevel::kWarning, "kv.folder_unreadable", {{"path", folder}, {"status", status}});
    return status.code() == StatusCode::kNotFound;
  }
  if (recovery->RemoveIfEmpty()) return true;
  janitor_.Own(folder);
  recoveries_.push_back(std::move(recovery));
  return true;
}

Result<WriteTarget> KvStore::FolderAfterAdoption() {
  GiveFoldersUp();
  DI_ASSIGN_OR_RETURN(WriteTarget target, MakeFolder());
  DI_RETURN_IF_ERROR(eraser_.Repeat(target.log.get()));
  return target;
}

void KvStore::GiveFoldersUp() {
  for (const std::string& folder : janitor_.OwnedFolders()) {
    for (const uint32_t id : context_.segments.InFolder(folder)) context_.segments.Remove(id);
  }
  janitor_.DisownAll();
  shared_->ReadAgain();
}

bool KvStore::LoadNextSegment() {
  const auto drop_finished = [this] {
    while (!recoveries_.empty() && recoveries_.back()->remaining() == 0) recoveries_.pop_back();
  };
  drop_finished();
  // Folders that could not be read at the start have another chance at each round.
  if (recoveries_.empty()) {
    std::erase_if(unread_folders_, [this](const std::string& folder) { return Recover(folder); });
    drop_finished();
  }
  if (recoveries_.empty()) {
    std::atomic<int64_t>& recovery_us = context_.counters.recovery_us;
    if (recovery_us == 0) recovery_us = std::max<int64_t>(1, context_.clock->NowUs() - opened_us_);
    return false;
  }
  if (const uint32_t id = recoveries_.back()->LoadNext(); id != 0) janitor_.RewriteSoon(id);
  return true;
}

void KvStore::StartThreads() {
  if (!read_only()) writer_ = std::thread([this] { WriterLoop(); });
  janitor_thread_ = std::thread([this] { JanitorLoop(); });
  if (shared_ != nullptr) peer_thread_ = std::thread([this] { PeerLoop(); });
}

KvStore::~KvStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_signal_.notify_all();
  if (writes_ != nullptr) writes_->Wake();
  if (writer_.joinable()) writer_.join();
  if (janitor_thread_.joinable()) janitor_thread_.join();
  if (peer_thread_.joinable()) peer_thread_.join();
  if (writes_ == nullptr) return;
  writes_->Flush(true);
  janitor_.ExchangeTouches();
}

void KvStore::WriterLoop() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    writes_->WaitForWork(kWriterWaitUs);
    writes_->Step();
    if (!writes_->TakeWantsRoom()) continue;
    const std::lock_guard lock(mutex_);
    wants_janitor_ = true;
    stop_signal_.notify_all();
  }
}

void KvStore::JanitorLoop() {
  const auto stopped = [this] { return stop_; };
  const auto is_called = [this] { return stop_ || wants_janitor_; };
  for (std::unique_lock lock(mutex_); !stop_;) {
    lock.unlock();
    // Loading comes first: an unknown segment cannot expire.
    const bool loading = LoadNextSegment();
    if (read_only()) {
      (void)context_.keys->Reload();
    } else if (!loading) {
      (void)janitor_.Step();
    }
    lock.lock();
    if (loading) continue;
    // A round looks at every segment: where it cannot make room it must not run on and on.
    stop_signal_.wait_for(lock, kLeastJanitorPause, stopped);
    stop_signal_.wait_for(lock, kJanitorPause - kLeastJanitorPause, is_called);
    wants_janitor_ = false;
  }
}

void KvStore::PeerLoop() {
  for (std::unique_lock lock(mutex_); !stop_;) {
    lock.unlock();
    shared_->Step();
    const int64_t pause_us = std::clamp<int64_t>(shared_->NextStepUs() - context_.clock->NowUs(), 0,
                                                 context_.options.peer_poll_us);
    lock.lock();
    stop_signal_.wait_for(lock, std::chrono::microseconds(pause_us), [this] { return stop_; });
  }
}

LookupResult KvStore::Lookup(std::span<const BlockKey> keys, uint16_t max_replay_gen) const {
  LookupResult result;
  if (loader_.IsOff()) {
    result.reason = MissReason::kBreaker;
    return result;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto indexed = context_.index.Find(keys[i]);
    if (!indexed) {
      result.reason = context_.departed.ReasonOf(keys[i]);
      break;
    }
    if (indexed->replay_gen > max_replay_gen) {
      result.reason = MissReason::kReplayGen;
      break;
    }
    result.blocks.push_back({keys[i], static_cast<uint32_t>(i), *indexed});
  }
  return result;
}

std::unique_ptr<KvLoad> KvStore::BeginLoad(std::vector<BlockRequest> blocks, int64_t deadline_us) {
  return loader_.Begin(std::move(blocks), deadline_us);
}

PublishResult KvStore::Publish(const PublishRequest& request, std::span<const std::byte> payload) {
  DI_CHECK(static_cast<int64_t>(payload.size()) == context_.options.layout.payload_bytes());
  if (read_only()) return PublishResult::kDroppedOff;
  const auto stored = context_.index.Find(request.key);
  const int64_t ttl_hours = context_.Policy(request.retention).ttl_hours;
  const bool limits_life =
      request.max_lifetime_hours > 0 && (ttl_hours == 0 || request.max_lifetime_hours < ttl_hours);
  // A short-lived record may not end the life of one that was promised a longer one.
  const bool gives_way = stored && stored->replay_gen > request.replace_above_gen &&
                         stored->replay_gen > request.replay_gen &&
                         (!limits_life || stored->absolute_deadline);
  if ((stored && !gives_way) || writes_->IsPending(request.key)) {
    ++context_.counters.already_stored;
    return PublishResult::kExists;
  }
  if (context_.keys->SecrecyOf(request.tenant_tag) == TenantSecrecy::kDestroyed) {
    context_.counters.CountDrop(DropReason::kKeyDestroyed);
    return PublishResult::kDroppedOff;
  }
  if (!context_.write_budget.Admit(request.retention, request.key, context_.clock->NowUs())) {
    ++context_.counters.spared_writes;
    return PublishResult::kDroppedBudget;
  }
  BlockWrite write;
  write.record = PageBuffer(context_.options.layout.record_bytes());
  if (!write.record.ok()) {
    context_.write_budget.Refund();
    context_.counters.CountDrop(DropReason::kError);
    return PublishResult::kDroppedFull;
  }
  std::ranges::copy(payload, write.record.bytes().subspan(kRecordHeaderBytes).begin());
  const int64_t now_ns = context_.wall_clock->UnixNs();
  // What replaces a block is kept as long as that one was promised to be.
  const RetentionClass retention =
      gives_way ? std::max(stored->retention, request.retention) : request.retention;
  RecordHeader& header = write.header;
  header.key = request.key;
  if (request.block_number > 0) {
    std::copy_n(request.parent.bytes.begin(), header.parent_prefix.size(),
                header.parent_prefix.begin());
  }
  header.block_number = request.block_number;
  header.retention = static_cast<uint8_t>(retention);
  header.tenant_tag = request.tenant_tag;
  header.replay_gen = request.replay_gen;
  header.created_ns = static_cast<uint64_t>(now_ns);
  header.flags = (request.has_generated ? kRecordHasGenerated : 0) |
                 (request.public_scope ? kRecordPublicScope : 0);
  const RetentionPolicy& policy = context_.Policy(retention);
  write.deadline_ns = policy.DeadlineNs(now_ns);
  if (limits_life) {
    write.deadline_ns = now_ns + request.max_lifetime_hours * kNsPerHour;
    header.flags |= kRecordAbsoluteDeadline;
  }
  return Offer(std::move(write));
}

PublishResult KvStore::Offer(BlockWrite write) {
  const auto retention = static_cast<RetentionClass>(write.header.retention);
  const uint16_t tenant = context_.tenants.SlotOf(write.header.tenant_tag);
  const QuotaRefusal refusal = context_.quotas.Reserve(tenant, write.header.tenant_tag, retention);
  if (refusal != QuotaRefusal::kNone) {
    context_.write_budget.Refund();
    context_.counters.CountDrop(refusal == QuotaRefusal::kClass ? DropReason::kClassQuota
                                                                : DropReason::kTenantQuota);
    return PublishResult::kDroppedQuota;
  }
  write.reserved_for = tenant;
  const PublishResult result = writes_->Enqueue(std::move(write));
  if (result == PublishResult::kQueued) {
    context_.reuse.BeginRest(retention, 0);
  } else {
    context_.quotas.Settle(tenant, retention);
  }
  return result;
}

PublishResult KvStore::PublishCopy(BlockWrite write) {
  if (read_only()) return PublishResult::kDroppedOff;
  context_.write_budget.ChargeOrdered(context_.clock->NowUs());
  return writes_->Enqueue(std::move(write));
}

void KvStore::Touch(std::span<const BlockKey> keys, RetentionClass retention) {
  const uint32_t minute = StoreMinute(context_.wall_clock->UnixNs());
  for (const BlockKey& key : keys) {
    const auto indexed = context_.index.Find(key);
    if (!indexed) continue;
    const int64_t rested = int64_t{minute} - indexed->touched_minute;
    context_.reuse.EndRest(indexed->retention, indexed->touches, std::max<int64_t>(0, rested));
    context_.reuse.BeginRest(indexed->retention,
                             static_cast<uint8_t>(std::min<int>(indexed->touches + 1, 255)));
    if (!read_only()) janitor_.NoteTouch(indexed->location);
  }
  context_.index.Touch(keys, minute, retention);
}

Result<int64_t> KvStore::EraseKeys(std::span<const BlockKey> keys) {
  if (read_only()) return Unsupported("another process owns the store");
  return eraser_.EraseKeys(keys);
}

Result<int64_t> KvStore::EraseTenant(uint64_t tenant_tag) {
  if (read_only()) return Unsupported("another process owns the store");
  return eraser_.EraseTenant(tenant_tag);
}

bool KvStore::Drain(int64_t deadline_us) {
  if (read_only()) return true;
  while (writes_->busy() && context_.clock->NowUs() < deadline_us) {
    if (context_.options.background_threads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      writes_->Flush(false);
    }
  }
  return !writes_->busy();
}

int64_t KvStore::TenantsOverQuota() const {
  std::set<uint16_t> over;
  for (const QuotaExcess& excess : context_.quotas.Excesses(context_.tenants.Tags())) {
    over.insert(excess.tenant);
  }
  return static_cast<int64_t>(over.size());
}

KvStoreStats KvStore::Stats() const {
  KvStoreStats stats;
  stats.blocks = context_.index.size();
  stats.index_bytes = context_.index.resident_bytes();
  if (!read_only()) stats.queued_bytes = writes_->queued_bytes();
  stats.reads_in_flight = loader_.reads_in_flight();
  for (const SegmentInfo& info : context_.segments.List()) {
    ++stats.segments;
    ++stats.segments_by_class[info.superblock.retention % kNumRetentionClasses];
  }
  stats.disk_bytes = context_.segments.num_own() * context_.options.layout.segment_bytes();
  stats.tier_state = loader_.TierState();
  stats.read_backend = loader_.backend_name();
  if (shared_ != nullptr) stats.peers = shared_->Peers();
  return stats;
}

}  // namespace deepinfer
