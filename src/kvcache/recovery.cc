#include "kvcache/recovery.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "kvcache/index_log.h"
#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

// Pages of touch.log kept by a reader: far beyond a week of hours for a large store.
constexpr int64_t kMaxTouchLogBytes = int64_t{4} << 30;

// Its writer died before it had written anything.
bool IsBlank(FileSystem* files, const std::string& path) {
  const auto file = files->Open(path, OpenMode::kRead, false);
  if (!file.ok()) return false;
  std::array<std::byte, kPageBytes> page{};
  const auto read = (*file)->ReadAt(page, 0);
  return read.ok() && std::ranges::all_of(page, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Status FolderRecovery::Begin() {
  DI_ASSIGN_OR_RETURN(const auto names, context_->files->List(folder_));
  for (const std::string& name : names) {
    const auto parsed = ParseSegmentFileName(name);
    any_segment_ = any_segment_ || parsed.has_value();
    if (parsed && parsed->extension != "bad") names_.push_back(name);
    if (IsStoreFile(name)) files_to_remove_.push_back(name);
  }
  // Numbers ascend, so the last name is the newest segment.
  std::ranges::sort(names_);
  DI_RETURN_IF_ERROR(ReadErasures());
  return ReadTouches();
}

bool FolderRecovery::RemoveIfEmpty() {
  if (any_segment_ || keep_log_) return false;
  // The logs speak of segments that are gone. Somebody's other file keeps the folder.
  for (const std::string& name : files_to_remove_) {
    (void)context_->files->Remove(folder_ + "/" + name);
  }
  return context_->files->RemoveDirectory(folder_).ok();
}

Status FolderRecovery::ReadErasures() {
  DI_ASSIGN_OR_RETURN(const auto entries, ReadIndexLog(context_->files, folder_));
  erased_ = ErasedPlaces(entries);
  const int64_t now_s = context_->wall_clock->UnixNs() / 1'000'000'000;
  keep_log_ =
      context_->options.shared && std::ranges::any_of(entries, [&](const IndexEntry& entry) {
        return IsErasure(entry) && now_s - int64_t{entry.page} < kErasureMemorySeconds;
      });
  return OkStatus();
}

Status FolderRecovery::ReadTouches() {
  const auto bytes = ReadWholeFile(context_->files, folder_ + "/touch.log", kMaxTouchLogBytes);
  if (bytes.status().code() == StatusCode::kNotFound) return OkStatus();
  if (!bytes.ok()) return bytes.status();
  for (std::span<const std::byte> rest = *bytes; rest.size() >= sizeof(TouchPage);
       rest = rest.subspan(sizeof(TouchPage))) {
    const auto page = FromBytes<TouchPage>(rest);
    // Advisory and independent of each other: a broken page costs its own touches only.
    if (!page.IsIntact()) continue;
    const uint32_t minute = StoreMinute(int64_t{page.hour} * kNsPerHour);
    for (size_t i = 0; i < page.count; ++i) {
      Touched& touched =
          touched_[LogPlace(page.items[i].segment_number, page.items[i].record_index)];
      touched.minute = std::max(touched.minute, minute);
      touched.touches = static_cast<uint8_t>(
          std::min<uint32_t>(uint32_t{touched.touches} + page.items[i].touches, 255));
    }
  }
  return OkStatus();
}

uint32_t FolderRecovery::LoadNext() {
  const std::string name = std::move(names_.back());
  names_.pop_back();
  return Load(name);
}

uint32_t FolderRecovery::Load(const std::string& name) {
  std::string path = folder_ + "/" + name;
  auto content = ReadSegment(context_->files, path, context_->options.namespace_id);
  if (content.status().code() == StatusCode::kDataCorruption && name.ends_with(".open") &&
      IsBlank(context_->files, path)) {
    (void)context_->files->Remove(path);
    return 0;
  }
  if (!content.ok()) {
    Log(LogLevel::kWarning, "kv.segment_unreadable",
        {{"path", path}, {"status", content.status()}});
    // Kept for people to look at; a file of another version may be read by its own program.
    if (content.status().code() != StatusCode::kDataCorruption) {
      ++context_->counters.foreign_segments;
    } else {
      ++context_->counters.quarantined_segments;
      (void)context_->files->Rename(path, path.substr(0, path.rfind('.')) + ".bad");
    }
    return 0;
  }
  if (content->layout != context_->options.layout) {
    Log(LogLevel::kWarning, "kv.segment_foreign", {{"path", path}});
    ++context_->counters.foreign_segments;
    return 0;
  }
  const bool open = name.ends_with(".open");
  if (content->entries.empty() && open) {
    (void)context_->files->Remove(path);
    return 0;
  }
  if (open || !content->from_footer) {
    const auto now_ns = static_cast<uint64_t>(context_->wall_clock->UnixNs());
    auto sealed = SealScanned(context_->files, path, *content, now_ns);
    if (sealed.ok()) {
      path = *std::move(sealed);
      ++context_->counters.sealed_segments;
      LogFound(content->entries);
    } else {
      Log(LogLevel::kWarning, "kv.segment_not_sealed",
          {{"path", path}, {"status", sealed.status()}});
    }
  }
  SegmentInfo info;
  info.path = path;
  info.folder = folder_;
  info.number = content->superblock.segment_number;
  info.superblock = content->superblock;
  info.state = SegmentState::kSealed;
  info.num_records = static_cast<int64_t>(content->entries.size());
  const uint32_t id = context_->segments.Add(std::move(info));
  return AddToIndex(id, *content) ? id : 0;
}

// Records that were on disk before their group was logged: from now on erasures and peers see them.
void FolderRecovery::LogFound(std::span<const IndexEntry> found) {
  const auto logged = ReadIndexLog(context_->files, folder_);
  if (!logged.ok() || found.empty()) return;
  std::unordered_set<uint32_t> pages;
  for (const IndexEntry& entry : *logged) {
    if (entry.Is(IndexOp::kAdd) && entry.segment_number == found.front().segment_number) {
      pages.insert(entry.page);
    }
  }
  std::vector<IndexEntry> missing(found.begin(), found.end());
  std::erase_if(missing, [&](const IndexEntry& entry) { return pages.contains(entry.page); });
  auto log = IndexLog::Open(context_->files, folder_);
  if (!log.ok()) return;
  if (!missing.empty()) (void)(*log)->Append(missing);
  (void)(*log)->AppendSegmentOp(IndexOp::kSegmentSealed, found.front().segment_number);
}

bool FolderRecovery::AddToIndex(uint32_t id, const SegmentContent& content) {
  const auto retention = static_cast<RetentionClass>(content.superblock.retention);
  const RetentionPolicy& policy = context_->Policy(retention);
  // The latest touch that the bucket allows, but not after the segment was complete: blocks may
  // live up to a bucket longer than promised, never shorter.
  const int64_t complete_ns = static_cast<int64_t>(
      content.sealed_ns != 0 ? content.sealed_ns : content.superblock.created_ns);
  int64_t touched_ns = complete_ns;
  if (content.superblock.bucket_hour != kNoBucket && policy.ttl_hours != 0) {
    const auto bucket_hour =
        static_cast<int64_t>(std::min<uint64_t>(content.superblock.bucket_hour, uint64_t{1} << 31));
    touched_ns = std::min(complete_ns, (bucket_hour - policy.ttl_hours) * kNsPerHour);
  }
  bool any_erased = false;
  for (size_t i = 0; i < content.entries.size(); ++i) {
    const IndexEntry& entry = content.entries[i];
    if (erased_.contains(LogPlace(entry.segment_number, entry.page))) {
      any_erased = true;
      continue;
    }
    IndexedBlock block;
    block.location = {id, static_cast<uint32_t>(i)};
    block.retention = retention;
    block.replay_gen = static_cast<uint8_t>(std::min<uint16_t>(entry.replay_gen, 255));
    block.tenant = context_->tenants.SlotOf(entry.tenant_tag);
    block.touched_minute = StoreMinute(touched_ns);
    if (const auto it = touched_.find(LogPlace(entry.segment_number, static_cast<uint32_t>(i)));
        it != touched_.end()) {
      block.touched_minute = std::max(block.touched_minute, it->second.minute);
      block.touches = it->second.touches;
    }
    (void)context_->Enter(entry.key, block);
  }
  return any_erased;
}

}  // namespace deepinfer
