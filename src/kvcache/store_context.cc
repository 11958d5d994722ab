#include "kvcache/store_context.h"

#include <algorithm>
#include <limits>

#include "kvcache/index_log.h"

namespace deepinfer {

int64_t RetentionPolicy::DeadlineNs(int64_t touched_ns) const {
  return ttl_hours == 0 ? kNoDeadlineNs : touched_ns + ttl_hours * kNsPerHour;
}

uint64_t RetentionPolicy::BucketOf(int64_t deadline_ns) const {
  if (deadline_ns == kNoDeadlineNs) return kNoBucket;
  const int64_t width_ns = bucket_hours * kNsPerHour;
  const int64_t num_widths = deadline_ns / width_ns + (deadline_ns % width_ns != 0 ? 1 : 0);
  return static_cast<uint64_t>(num_widths * bucket_hours);
}

Result<SegmentContent> ReadOwnSegment(FileSystem* files, const SegmentInfo& info) {
  return ReadSegment(files, info.path, info.superblock, [&] {
    return ReadAdds(files, info.folder, static_cast<uint32_t>(info.number));
  });
}

uint32_t SegmentTable::Add(SegmentInfo info) {
  const std::lock_guard lock(mutex_);
  info.id = next_id_++;
  const uint32_t id = info.id;
  segments_[id].info = std::move(info);
  return id;
}

std::optional<SegmentInfo> SegmentTable::Find(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) return std::nullopt;
  return it->second.info;
}

std::vector<SegmentInfo> SegmentTable::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> list;
  for (const auto& [id, entry] : segments_) list.push_back(entry.info);
  return list;
}

void SegmentTable::Remove(uint32_t id) {
  const std::lock_guard lock(mutex_);
  segments_.erase(id);
  std::erase(opened_, id);
}

std::shared_ptr<File> SegmentTable::OpenedFile(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end() || it->second.info.state == SegmentState::kQuarantined) return nullptr;
  return it->second.file;
}

Result<std::shared_ptr<File>> SegmentTable::OpenForRead(uint32_t id) {
  const auto info = Find(id);
  if (!info) return NotFound("the segment is gone");
  if (info->state == SegmentState::kQuarantined) return NotFound("segment in quarantine");
  if (auto file = OpenedFile(id)) return file;
  auto opened = files_->Open(info->path, OpenMode::kRead, direct_);
  if (opened.status().code() == StatusCode::kNotFound && info->state == SegmentState::kOpen) {
    // Sealed since we heard of it.
    opened = files_->Open(info->path.substr(0, info->path.rfind('.')) + ".seg", OpenMode::kRead,
                          direct_);
  }
  DI_RETURN_IF_ERROR(opened.status());
  std::shared_ptr<File> file = *std::move(opened);
  const std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) return NotFound("the segment is gone");
  Entry& entry = it->second;
  if (entry.file != nullptr) return entry.file;  // another thread was faster
  if (opened_.size() >= kMaxOpenFiles) {
    if (const auto oldest = segments_.find(opened_.front()); oldest != segments_.end()) {
      oldest->second.file = nullptr;
    }
    opened_.erase(opened_.begin());
  }
  entry.file = std::move(file);
  opened_.push_back(id);
  return entry.file;
}

Residence SegmentTable::ResidenceOf(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) return Residence::kGone;
  return it->second.info.peer ? Residence::kPeer : Residence::kOwn;
}

std::vector<uint32_t> SegmentTable::InFolder(const std::string& folder) const {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> ids;
  for (const auto& [id, entry] : segments_) {
    if (entry.info.folder == folder) ids.push_back(id);
  }
  return ids;
}

int64_t SegmentTable::num_own() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count_if(segments_, [](const auto& item) { return !item.second.info.peer; });
}

void SegmentTable::NoteMissing(uint32_t id) {
  const std::lock_guard lock(mutex_);
  missing_.insert(id);
}

std::vector<uint32_t> SegmentTable::TakeMissing() {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> missing(missing_.begin(), missing_.end());
  missing_.clear();
  return missing;
}

uint16_t TenantTable::SlotOf(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto it = slots_.find(tag);
  if (it != slots_.end()) return it->second;
  if (tags_.size() > std::numeric_limits<uint16_t>::max()) return 0;
  const auto slot = static_cast<uint16_t>(tags_.size());
  slots_[tag] = slot;
  tags_.push_back(tag);
  return slot;
}

uint64_t TenantTable::TagOf(uint16_t slot) const {
  const std::lock_guard lock(mutex_);
  return tags_[slot];
}

std::vector<uint64_t> TenantTable::Tags() const {
  const std::lock_guard lock(mutex_);
  return tags_;
}

std::map<uint64_t, int64_t> StoreContext::BytesByTenant() const {
  std::map<uint64_t, int64_t> bytes;
  const std::vector<uint64_t> tags = tenants.Tags();
  for (size_t tenant = 1; tenant < tags.size(); ++tenant) {
    int64_t blocks = 0;
    for (size_t i = 0; i < kNumRetentionClasses; ++i) {
      blocks += index.CountOf(static_cast<uint16_t>(tenant), static_cast<RetentionClass>(i));
    }
    bytes[tags[tenant]] = blocks * options.layout.record_bytes();
  }
  return bytes;
}

void StoreContext::EnterAll(std::span<const KeyedBlock> blocks) {
  for (const size_t known : index.InsertAll(blocks)) {
    (void)Enter(blocks[known].key, blocks[known].block);
  }
}

bool StoreContext::Enter(const BlockKey& key, const IndexedBlock& block) {
  if (index.Insert(key, block)) return true;
  const auto existing = index.Find(key);
  if (!existing) return false;
  if (block.replay_gen > existing->replay_gen) return false;
  // A pinned copy outlives the other one.
  const bool pins =
      block.retention == RetentionClass::kPinned && existing->retention != RetentionClass::kPinned;
  if (!pins && block.replay_gen == existing->replay_gen &&
      segments.ResidenceOf(existing->location.segment) == Residence::kOwn) {
    return false;
  }
  return index.Replace(key, existing->location, block);
}

void StoreContext::Forget(const BlockKey& key, const IndexedBlock& block) {
  (void)index.Erase(key, block.location);
}

std::vector<IndexedBlock> StoreContext::ForgetSegments(const std::set<uint32_t>& ids) {
  if (ids.empty()) return {};
  return index.EraseIf(
      [&](const IndexedBlock& block) { return ids.contains(block.location.segment); });
}

}  // namespace deepinfer
