#include "kvcache/erasure.h"

#include <algorithm>

#include "base/log.h"
#include "kvcache/index_log.h"
#include "kvcache/segment_file.h"

namespace deepinfer {

Result<int64_t> Eraser::EraseKeys(std::span<const BlockKey> keys) {
  writes_->Discard(keys);
  int64_t erased = 0;
  Status failure;
  for (const BlockKey& key : keys) {
    // Said even of a block that is not known here: a process that reads may still serve it.
    const auto count = Apply(EraseKeyEntry(key, context_->wall_clock->UnixNs()));
    // The others leave the index all the same.
    if (count.ok()) {
      erased += *count;
    } else if (failure.ok()) {
      failure = count.status();
    }
  }
  DI_RETURN_IF_ERROR(failure);
  return erased;
}

Result<int64_t> Eraser::EraseTenant(uint64_t tenant_tag) {
  writes_->DiscardTenant(tenant_tag);
  DI_RETURN_IF_ERROR(context_->keys->Destroy(tenant_tag).status());
  return Apply(EraseTenantEntry(tenant_tag, context_->wall_clock->UnixNs()));
}

Result<int64_t> Eraser::Apply(const IndexEntry& erasure) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> folders;
  for (const SegmentInfo& info : context_->segments.List()) folders.insert(info.folder);
  const std::vector<std::string> owned = janitor_->OwnedFolders();
  folders.insert(owned.begin(), owned.end());
  // Out of the index first: nothing may be served while the logs are written.
  NoteForLoading(erasure);
  const int64_t erased = Forget(erasure, folders);
  RewriteOwned(erasure, folders);
  known_[IdentityOf(erasure)] = erasure;
  Status failure;
  for (const std::string& folder : owned) {
    const Status said = Say(folder, erasure);
    if (failure.ok()) failure = said;
  }
  DI_RETURN_IF_ERROR(failure);
  return erased;
}

// Segments that are not loaded yet are entered without it.
void Eraser::NoteForLoading(const IndexEntry& erasure) {
  const std::lock_guard lock(context_->erased.mutex);
  context_->erased.names.Add(erasure);
}

Status Eraser::Say(const std::string& folder, const IndexEntry& erasure) {
  const Identity identity = IdentityOf(erasure);
  const Status status = janitor_->AppendErasure(folder, erasure);
  if (status.ok()) {
    heard_[folder].insert(identity);
    unsaid_.erase({folder, identity});
  } else {
    Log(LogLevel::kWarning, "kv.erasure_not_logged", {{"path", folder}, {"status", status}});
    heard_[folder].erase(identity);
    unsaid_.insert({folder, identity});
  }
  return status;
}

void Eraser::SayUnsaid() {
  const std::lock_guard lock(mutex_);
  const auto unsaid = unsaid_;
  for (const auto& [folder, identity] : unsaid) {
    if (janitor_->Owns(folder)) {
      (void)Say(folder, known_.at(identity));
    } else {
      unsaid_.erase({folder, identity});
    }
  }
}

Status Eraser::Repeat(IndexLog* log) {
  const std::lock_guard lock(mutex_);
  const int64_t oldest_s = context_->wall_clock->UnixNs() / 1'000'000'000 - kErasureMemorySeconds;
  std::vector<IndexEntry> erasures;
  for (const auto& [identity, erasure] : known_) {
    if (int64_t{erasure.page} < oldest_s) continue;
    erasures.push_back(erasure);
    heard_[log->folder()].insert(identity);
  }
  return log->AppendErasures(erasures);
}

std::vector<IndexEntry> Eraser::Unheard(const std::string& folder,
                                        std::span<const IndexEntry> log) {
  const std::lock_guard lock(mutex_);
  std::set<Identity> heard = heard_[folder];
  for (const IndexEntry& entry : log) {
    if (IsErasure(entry)) heard.insert(IdentityOf(entry));
  }
  std::vector<IndexEntry> unheard;
  for (const auto& [identity, erasure] : known_) {
    if (!heard.contains(identity)) unheard.push_back(erasure);
  }
  return unheard;
}

int64_t Eraser::Heard(const std::string& folder, const IndexEntry& erasure, bool means_folder) {
  const std::lock_guard lock(mutex_);
  const Identity identity = IdentityOf(erasure);
  known_[identity] = erasure;
  std::set<std::string> folders;
  for (const SegmentInfo& info : context_->segments.List()) folders.insert(info.folder);
  const std::vector<std::string> owned = janitor_->OwnedFolders();
  folders.insert(owned.begin(), owned.end());
  folders.erase(folder);
  std::erase_if(folders,
                [&](const std::string& other) { return !heard_[other].insert(identity).second; });
  heard_[folder].insert(identity);
  if (means_folder) folders.insert(folder);
  const int64_t erased = Forget(erasure, folders);
  RewriteOwned(erasure, folders);
  for (const std::string& mine : owned) {
    if (folders.contains(mine)) (void)Say(mine, erasure);
  }
  return erased;
}

void Eraser::MoveFolder(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (const auto it = heard_.find(from); it != heard_.end()) {
    heard_[to].merge(it->second);
    heard_.erase(from);
  }
}

Status Eraser::CatchUp(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  std::set<Identity>& heard = heard_[folder];
  DI_ASSIGN_OR_RETURN(const LogContent log, ReadIndexLog(context_->files, folder));
  for (const IndexEntry& entry : log.entries) {
    if (!IsErasure(entry)) continue;
    heard.insert(IdentityOf(entry));
    known_[IdentityOf(entry)] = entry;
  }
  std::vector<IndexEntry> missing;
  for (const auto& [identity, erasure] : known_) {
    if (heard.contains(identity)) continue;
    (void)Forget(erasure, {folder});
    RewriteOwned(erasure, {folder});
    missing.push_back(erasure);
  }
  for (const IndexEntry& erasure : missing) (void)Say(folder, erasure);
  return OkStatus();
}

int64_t Eraser::Forget(const IndexEntry& erasure, const std::set<std::string>& folders) {
  int64_t erased = 0;
  if (erasure.Is(IndexOp::kEraseKey)) {
    const auto indexed = context_->index.Find(erasure.key);
    if (!indexed) return 0;
    const auto info = context_->segments.Find(indexed->location.segment);
    if (info && !folders.contains(info->folder)) return 0;
    context_->Forget(erasure.key, *indexed);
    if (info) janitor_->RewriteSoon(info->id);
    erased = 1;
  } else {
    const uint16_t tenant = context_->tenants.SlotOf(erasure.tenant_tag);
    std::set<uint32_t> elsewhere;
    for (const SegmentInfo& info : context_->segments.List()) {
      if (!folders.contains(info.folder)) elsewhere.insert(info.id);
    }
    // Number 0 stands for all tenants beyond the table: then more goes than was asked for.
    const auto forgotten = context_->index.EraseIf([&](const IndexedBlock& block) {
      return block.tenant == tenant && !elsewhere.contains(block.location.segment);
    });
    erased = static_cast<int64_t>(forgotten.size());
  }
  context_->counters.erased_blocks += erased;
  return erased;
}

// Also records that the index does not point to: second copies, or blocks of a dead group.
void Eraser::RewriteOwned(const IndexEntry& erasure, const std::set<std::string>& folders) {
  if (!erasure.Is(IndexOp::kEraseTenant)) return;
  for (const SegmentInfo& info : context_->segments.List()) {
    if (info.peer || !folders.contains(info.folder)) continue;
    const auto content = ReadOwnSegment(context_->files, info);
    // One that cannot be read may hold some.
    if (!content.ok() || std::ranges::any_of(content->entries, [&](const IndexEntry& entry) {
          return entry.tenant_tag == erasure.tenant_tag;
        })) {
      janitor_->RewriteSoon(info.id);
    }
  }
}

}  // namespace deepinfer
