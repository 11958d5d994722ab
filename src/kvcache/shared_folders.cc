#include "kvcache/shared_folders.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kvcache/recovery.h"

namespace deepinfer {
namespace {

// A sweep looks at every entry of the index, so removals wait for company.
constexpr int64_t kSweepUs = 10'000'000;

std::string BaseName(const EpochFolder& folder) {
  return EpochFolderName(folder.node, folder.epoch);
}

}  // namespace

SharedFolders::SharedFolders(StoreContext* context, Janitor* janitor, Eraser* eraser,
                             std::string namespace_folder)
    : context_(context),
      janitor_(janitor),
      eraser_(eraser),
      namespace_folder_(std::move(namespace_folder)),
      boot_id_(context->options.boot_id.empty() ? SystemBootId() : context->options.boot_id),
      watch_(context->options.lease_dead_us, context->options.lease_watch_us) {}

std::string SharedFolders::OwnName() const {
  const std::lock_guard lock(mutex_);
  return own_name_;
}

Status SharedFolders::Join(const std::string& folder_name, uint64_t epoch) {
  LeaseRecord lease = NewLease(context_->options.node, boot_id_, epoch);
  DI_RETURN_IF_ERROR(RenewLease(context_->files, namespace_folder_ + "/" + folder_name, &lease,
                                context_->wall_clock->UnixNs()));
  const std::lock_guard lock(mutex_);
  own_name_ = folder_name;
  lease_ = lease;
  return OkStatus();
}

// Only while the lock of our node says that no other process has its name.
bool SharedFolders::IsOurEarlier(const EpochFolder& folder) const {
  if (folder.node != context_->options.node || folder.owner != folder.name) return false;
  const auto sight = LookAtLease(context_->files, namespace_folder_ + "/" + folder.name);
  // Without a lease it was never shared, or its process died before it wrote one.
  if (sight.status().code() == StatusCode::kNotFound) return true;
  return sight.ok() && sight->record && !boot_id_.empty() && sight->record->Boot() == boot_id_;
}

// On a slow file system the lease and a scan take longer than the time between looks at the logs,
// so the logs have their turn before, between and behind them.
void SharedFolders::Step() {
  const int64_t now_us = context_->clock->NowUs();
  FollowPeersIfDue();
  RenewLeaseIfDue();
  FollowPeersIfDue();
  std::vector<uint32_t> missing = context_->segments.TakeMissing();
  gone_.insert(missing.begin(), missing.end());
  // A peer's file that is not where it was: its folder may have a new name.
  if (now_us >= scan_us_ || !missing.empty()) {
    ScanFolders();
    scan_us_ = now_us + context_->options.peer_scan_us;
    follow_us_ = 0;  // what is new there is read at once
  }
  FollowPeersIfDue();
  if (now_us >= sweep_us_) {
    FinishAdoptions();
    eraser_->SayUnsaid();
    SweepGone();
    sweep_us_ = now_us + kSweepUs;
  }
}

int64_t SharedFolders::NextStepUs() const {
  // A lost peer asks for a scan together with the next look, not in a loop.
  const int64_t look_us = std::min(follow_us_, scan_us_ == 0 ? follow_us_ : scan_us_);
  return only_reads_ ? look_us : std::min(look_us, renew_us_);
}

void SharedFolders::FollowPeersIfDue() {
  const int64_t now_us = context_->clock->NowUs();
  if (now_us < follow_us_) return;
  follow_us_ = now_us + context_->options.peer_poll_us;
  FollowPeers();
}

void SharedFolders::RenewLeaseIfDue() {
  const int64_t now_us = context_->clock->NowUs();
  if (only_reads_ || now_us < renew_us_) return;
  LeaseRecord lease;
  std::string folder;
  {
    const std::lock_guard lock(mutex_);
    lease = lease_;
    folder = namespace_folder_ + "/" + own_name_;
  }
  const Status status = RenewLease(context_->files, folder, &lease, context_->wall_clock->UnixNs());
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    if (lease_.epoch == lease.epoch) lease_ = lease;
    renew_us_ = now_us + context_->options.lease_renew_us;
    return;
  }
  Log(LogLevel::kWarning, "kv.lease", {{"path", folder}, {"status", status}});
  renew_us_ = now_us + context_->options.lease_renew_us / 10;
  if (status.code() == StatusCode::kNotFound) writes_->SuspectFence();
}

void SharedFolders::FollowPeers() {
  bool lost = false;
  if (read_again_.exchange(false)) {
    for (const auto& [name, peer] : peers_) peer->MoveTo(peer->folder());
  }
  for (const auto& [name, peer] : peers_) {
    const auto entries = peer->Follow(eraser_);
    // Renamed or removed: the next scan tells which.
    lost = lost || entries.status().code() == StatusCode::kNotFound;
  }
  if (lost) scan_us_ = 0;
  std::vector<PeerView> views;
  for (const auto& [name, peer] : peers_) views.push_back({peer->folder(), peer->followed_us()});
  const std::lock_guard lock(mutex_);
  views_ = std::move(views);
}

void SharedFolders::ScanFolders() {
  auto listed = ListEpochFolders(context_->files, namespace_folder_);
  if (!listed.ok()) return;
  const std::string own = OwnName();
  std::set<std::string> present;
  for (const EpochFolder& folder : *listed) {
    const std::string base = BaseName(folder);
    if (folder.owner == own) {
      if (unfinished_.contains(base)) present.insert(base);
      continue;
    }
    const std::string path = namespace_folder_ + "/" + folder.name;
    if (janitor_->Owns(path)) continue;
    present.insert(base);
    const auto it = peers_.find(base);
    if (it == peers_.end()) {
      peers_[base] = std::make_unique<PeerLog>(context_, path);
    } else if (it->second->folder() != path) {
      eraser_->MoveFolder(it->second->folder(), path);
      it->second->MoveTo(path);
    }
  }
  std::vector<std::string> absent;
  for (const auto& [base, peer] : peers_) {
    if (!present.contains(base)) absent.push_back(base);
  }
  for (const std::string& base : absent) DropPeer(base);
  if (!only_reads_) AdoptDead(*listed);
}

void SharedFolders::DropPeer(const std::string& base_name) {
  const auto it = peers_.find(base_name);
  if (it == peers_.end()) return;
  for (const uint32_t id : it->second->Segments()) {
    context_->segments.Remove(id);
    gone_.insert(id);
  }
  peers_.erase(it);
}

bool SharedFolders::IsDead(const std::string& owner, const std::vector<EpochFolder>& folders) {
  // An adopter's own folder is there for as long as it lives.
  if (std::ranges::none_of(folders, [&](const EpochFolder& f) { return f.name == owner; })) {
    return true;
  }
  const auto sight = LookAtLease(context_->files, namespace_folder_ + "/" + owner);
  // A folder without a lease belongs to a process that does not share, or is being made.
  if (!sight.ok() || !watch_.StandsStill(owner, *sight, context_->clock->NowUs())) return false;
  const auto now_ns = FileSystemNowNs(context_->files, namespace_folder_ + "/" + OwnName());
  return now_ns.ok() && watch_.IsTooOld(*sight, *now_ns);
}

void SharedFolders::AdoptDead(const std::vector<EpochFolder>& folders) {
  const std::string own = OwnName();
  for (const EpochFolder& folder : folders) {
    if (folder.owner == own || !IsDead(folder.owner, folders)) continue;
    (void)Adopt(folder);
  }
}

bool SharedFolders::Adopt(const EpochFolder& folder) {
  const std::string from = namespace_folder_ + "/" + folder.name;
  const std::string path = namespace_folder_ + "/" + AdoptedFolderName(folder, OwnName());
  if (!context_->files->Rename(from, path).ok()) return false;
  (void)context_->files->SyncDirectory(namespace_folder_);
  Log(LogLevel::kInfo, "kv.folder_adopted", {{"path", path}});
  ++context_->counters.adopted_folders;
  eraser_->MoveFolder(from, path);
  const auto peer = peers_.find(BaseName(folder));
  // What is known of the folder stays readable while its segments become ours one by one.
  if (peer != peers_.end()) peer->second->MoveTo(path);
  if (const Status status = Finish(BaseName(folder), path); !status.ok()) {
    Log(LogLevel::kWarning, "kv.folder_unreadable", {{"path", path}, {"status", status}});
    unfinished_[BaseName(folder)] = path;
  }
  return true;
}

Status SharedFolders::Finish(const std::string& base_name, const std::string& path) {
  // If its owner lives after all: it can still write through open files, but nobody reads that log.
  DI_RETURN_IF_ERROR(ReplaceIndexLog(context_->files, path));
  // What was erased meanwhile its log is told below.
  ErasedSinceOpen nothing;
  FolderRecovery recovery(context_, path, &nothing);
  DI_RETURN_IF_ERROR(recovery.Begin());
  janitor_->Own(path);
  if (!recovery.RemoveIfEmpty()) {
    while (recovery.remaining() > 0) {
      if (const uint32_t id = recovery.LoadNext(); id != 0) janitor_->RewriteSoon(id);
      RenewLeaseIfDue();
    }
    if (!eraser_->CatchUp(path).ok()) behind_.insert(path);
  }
  DropPeer(base_name);
  return OkStatus();
}

// Adoptions that met a bad moment: nobody else will take these folders while this process lives.
void SharedFolders::FinishAdoptions() {
  std::erase_if(unfinished_, [&](const auto& item) {
    const Status status = Finish(item.first, item.second);
    return status.ok() || status.code() == StatusCode::kNotFound;
  });
  std::erase_if(behind_, [&](const std::string& path) {
    return !janitor_->Owns(path) || eraser_->CatchUp(path).ok();
  });
}

// Missing segments of peers whose folders are still there were removed by their owners.
void SharedFolders::SweepGone() {
  std::set<uint32_t> gone;
  for (const uint32_t id : gone_) {
    const auto info = context_->segments.Find(id);
    if (!info) {
      gone.insert(id);
      continue;
    }
    const auto file = context_->segments.OpenForRead(id);
    if (file.status().code() != StatusCode::kNotFound) continue;  // found under its new name
    context_->segments.Remove(id);
    gone.insert(id);
  }
  gone_.clear();
  (void)context_->ForgetSegments(gone);
}

std::vector<PeerView> SharedFolders::Peers() const {
  const int64_t now_us = context_->clock->NowUs();
  const std::lock_guard lock(mutex_);
  std::vector<PeerView> views = views_;
  for (PeerView& view : views) view.lag_us = now_us - view.lag_us;
  return views;
}

}  // namespace deepinfer
