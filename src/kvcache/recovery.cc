#include "kvcache/recovery.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "kvcache/index_log.h"
#include "kvcache/store_folders.h"
#include "kvcache/touch_log.h"

namespace deepinfer {
namespace {

// Pages of touch.log kept by a reader: far beyond a week of hours for a large store.
constexpr int64_t kMaxTouchLogBytes = int64_t{4} << 30;
// Enough that handing them over costs nothing beside reading them, few enough that they stay in the
// caches until they are entered (150 kB of footer each).
constexpr size_t kReadAheadSegments = 16;

// Its writer died before it had written anything.
bool IsBlank(FileSystem* files, const std::string& path) {
  const auto file = files->Open(path, OpenMode::kRead, false);
  if (!file.ok()) return false;
  std::array<std::byte, kPageBytes> page{};
  const auto read = ReadUpTo(file->get(), page, 0);
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
  DI_RETURN_IF_ERROR(ReadLog());
  ReadTouches();
  return OkStatus();
}

bool FolderRecovery::RemoveIfEmpty() {
  if (any_segment_ || keep_log_) return false;
  // The logs speak of segments that are gone. Somebody's other file keeps the folder.
  for (const std::string& name : files_to_remove_) {
    (void)context_->files->Remove(folder_ + "/" + name);
  }
  return context_->files->RemoveDirectory(folder_).ok();
}

Status FolderRecovery::ReadLog() {
  for (const std::string& name : names_) {
    if (!name.ends_with(".open")) continue;
    open_adds_[static_cast<uint32_t>(ParseSegmentFileName(name)->number)] = {};
  }
  const int64_t now_s = context_->wall_clock->UnixNs() / 1'000'000'000;
  bool any_erasure = false;
  // A log is as long as the footers of all its segments together: it is not kept.
  const auto visit = [&](const IndexEntry& entry) {
    if (entry.Is(IndexOp::kAdd)) {
      const auto it = open_adds_.empty() ? open_adds_.end() : open_adds_.find(entry.segment_number);
      if (it != open_adds_.end()) it->second.push_back(entry);
    } else if (entry.Is(IndexOp::kRecordDropped)) {
      dropped_.insert(LogPlace(entry.segment_number, entry.page));
    } else if (IsErasure(entry)) {
      any_erasure = true;
      keep_log_ = keep_log_ ||
                  (context_->options.shared && now_s - int64_t{entry.page} < kErasureMemorySeconds);
    }
  };
  DI_ASSIGN_OR_RETURN(const LogExtent extent, VisitIndexLog(context_->files, folder_, visit));
  if (extent.num_damaged > 0) {
    context_->counters.damaged_log_entries += extent.num_damaged;
    Log(LogLevel::kWarning, "kv.log_entries_damaged",
        {{"path", folder_}, {"entries", extent.num_damaged}});
  }
  if (!any_erasure) return OkStatus();
  DI_ASSIGN_OR_RETURN(const LogContent log, ReadIndexLog(context_->files, folder_));
  erasures_ = LogErasures(log.entries);
  return OkStatus();
}

// Advisory: without them blocks only leave earlier.
void FolderRecovery::ReadTouches() {
  const auto file = context_->files->Open(folder_ + "/touch.log", OpenMode::kRead, false);
  if (!file.ok()) return;
  TouchPage page;
  for (int64_t offset = 0; offset < kMaxTouchLogBytes; offset += kPageBytes) {
    if (!ReadTouchPage(file->get(), offset, &page)) return;
    // They are independent of each other: a broken page costs its own touches only.
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
}

uint32_t FolderRecovery::LoadNext() {
  if (arrived_.empty()) Arrive();
  NamedContent segment = std::move(arrived_.front());
  arrived_.pop_front();
  return Load(std::move(segment));
}

// Reading files and checking them takes as long as entering what they hold, so that the next ones
// are read meanwhile.
void FolderRecovery::Arrive() {
  if (read_ahead_.valid()) {
    arrived_ = read_ahead_.get();
    num_read_ahead_ = 0;
  } else {
    // One alone: the newest segment is served first.
    arrived_ = ReadAll(TakeNames(1));
  }
  if (!context_->options.background_threads || names_.empty()) return;
  std::vector<std::string> next = TakeNames(kReadAheadSegments);
  num_read_ahead_ = next.size();
  read_ahead_ =
      std::async(std::launch::async, [this, names = std::move(next)] { return ReadAll(names); });
}

std::vector<std::string> FolderRecovery::TakeNames(size_t most) {
  if (names_.empty()) {
    names_.swap(later_);
    --rounds_left_;
  }
  std::vector<std::string> taken;
  for (; !names_.empty() && taken.size() < most; names_.pop_back()) {
    taken.push_back(std::move(names_.back()));
  }
  return taken;
}

std::deque<FolderRecovery::NamedContent> FolderRecovery::ReadAll(
    const std::vector<std::string>& names) const {
  std::deque<NamedContent> contents;
  for (const std::string& name : names) contents.push_back({name, Read(name)});
  return contents;
}

Result<SegmentContent> FolderRecovery::Read(const std::string& name) const {
  const std::string path = folder_ + "/" + name;
  const uint64_t number = ParseSegmentFileName(name)->number;
  const auto segment_number = static_cast<uint32_t>(number);
  const LoggedAdds logged = [&]() -> Result<std::vector<IndexEntry>> {
    const auto it = open_adds_.find(segment_number);
    if (it != open_adds_.end()) return it->second;
    return ReadAdds(context_->files, folder_, segment_number);
  };
  const Sha256Digest& space = context_->options.namespace_id;
  auto content = ReadSegment(context_->files, path, space, logged);
  if (content.status().code() != StatusCode::kDataCorruption) return content;
  const auto bucket_of = [&](RetentionClass retention, int64_t sealed_ns) {
    const RetentionPolicy& policy = context_->Policy(retention);
    return policy.BucketOf(policy.DeadlineNs(sealed_ns));
  };
  const Status repaired =
      RepairSuperblock(context_->files, path, context_->options.layout, space, number, bucket_of);
  if (!repaired.ok()) {
    return repaired.code() == StatusCode::kDataCorruption ? content.status() : repaired;
  }
  ++context_->counters.repaired_segments;
  Log(LogLevel::kWarning, "kv.segment_repaired", {{"path", path}});
  return ReadSegment(context_->files, path, space, logged);
}

void FolderRecovery::GiveUp(const std::string& name, const Status& status) {
  const std::string path = folder_ + "/" + name;
  const StatusCode code = status.code();
  if (code == StatusCode::kDataCorruption && name.ends_with(".open") &&
      IsBlank(context_->files, path)) {
    (void)context_->files->Remove(path);
    return;
  }
  const bool is_moment = code != StatusCode::kDataCorruption && code != StatusCode::kUnsupported &&
                         code != StatusCode::kNotFound;
  if (is_moment && rounds_left_ > 0) {
    later_.push_back(name);
    return;
  }
  Log(LogLevel::kWarning, "kv.segment_unreadable", {{"path", path}, {"status", status}});
  // Kept for people to look at; a file of another version may be read by its own program.
  if (code != StatusCode::kDataCorruption) {
    ++context_->counters.foreign_segments;
  } else {
    ++context_->counters.quarantined_segments;
    (void)context_->files->Rename(path, path.substr(0, path.rfind('.')) + ".bad");
  }
}

uint32_t FolderRecovery::Load(NamedContent segment) {
  const auto& [name, content] = segment;
  std::string path = folder_ + "/" + name;
  const uint64_t number = ParseSegmentFileName(name)->number;
  if (!content.ok()) {
    GiveUp(name, content.status());
    return 0;
  }
  if (content->layout != context_->options.layout) {
    Log(LogLevel::kWarning, "kv.segment_foreign", {{"path", path}});
    ++context_->counters.foreign_segments;
    return 0;
  }
  const bool open = name.ends_with(".open");
  // Nothing of it was ever committed.
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
      LogFound(static_cast<uint32_t>(number), content->entries);
    } else {
      Log(LogLevel::kWarning, "kv.segment_not_sealed",
          {{"path", path}, {"status", sealed.status()}});
    }
  }
  SegmentInfo info;
  info.path = path;
  info.folder = folder_;
  info.number = number;
  info.superblock = content->superblock;
  info.state = SegmentState::kSealed;
  info.num_records = static_cast<int64_t>(content->entries.size());
  const uint32_t id = context_->segments.Add(std::move(info));
  return AddToIndex(id, *content) ? id : 0;
}

// Records that were on disk before their group was logged: from now on erasures and peers see them.
void FolderRecovery::LogFound(uint32_t segment_number, std::span<const IndexEntry> found) {
  const auto logged = ReadAdds(context_->files, folder_, segment_number);
  if (!logged.ok()) return;
  std::unordered_set<uint32_t> pages;
  for (const IndexEntry& entry : *logged) pages.insert(entry.page);
  std::vector<IndexEntry> missing(found.begin(), found.end());
  // Behind an erasure an erased record would look as if it had been added again.
  std::erase_if(missing, [&](const IndexEntry& entry) {
    return pages.contains(entry.page) || IsNameless(entry) || erasures_.Mean(entry);
  });
  auto log = IndexLog::Open(context_->files, folder_);
  if (!log.ok()) return;
  if (!missing.empty()) (void)(*log)->Append(missing);
  (void)(*log)->AppendSegmentOp(IndexOp::kSegmentSealed, segment_number);
}

// The latest touch that the bucket allows, but not after the segment was complete: blocks may
// live up to a bucket longer than promised, never shorter.
int64_t FolderRecovery::LatestTouchNs(const SegmentContent& content) const {
  const Superblock& superblock = content.superblock;
  const int64_t complete_ns =
      static_cast<int64_t>(content.sealed_ns != 0 ? content.sealed_ns : superblock.created_ns);
  const int64_t ttl_hours =
      context_->Policy(static_cast<RetentionClass>(superblock.retention)).ttl_hours;
  if (superblock.bucket_hour == kNoBucket || ttl_hours == 0) return complete_ns;
  return std::min(complete_ns, BucketNs(superblock.bucket_hour) - ttl_hours * kNsPerHour);
}

bool FolderRecovery::AddToIndex(uint32_t id, const SegmentContent& content) {
  const auto retention = static_cast<RetentionClass>(content.superblock.retention);
  const uint32_t touched_minute = StoreMinute(LatestTouchNs(content));
  bool any_erased = false;
  size_t num_dropped = 0;
  const std::lock_guard lock(erased_->mutex);
  to_enter_.clear();
  to_enter_.reserve(content.entries.size());
  std::optional<uint64_t> last_tag;
  uint16_t last_tenant = 0;
  for (size_t i = 0; i < content.entries.size(); ++i) {
    const IndexEntry& entry = content.entries[i];
    if (IsNameless(entry)) continue;
    if (erasures_.Mean(entry) || erased_->names.Hold(entry)) {
      any_erased = true;
      continue;
    }
    if (!dropped_.empty() && dropped_.contains(LogPlace(entry.segment_number, entry.page))) {
      ++num_dropped;
      continue;
    }
    IndexedBlock block;
    block.location = {id, static_cast<uint32_t>(i)};
    block.retention = retention;
    block.replay_gen = static_cast<uint8_t>(std::min<uint16_t>(entry.replay_gen, 255));
    if (entry.tenant_tag != last_tag) {
      last_tag = entry.tenant_tag;
      last_tenant = context_->tenants.SlotOf(entry.tenant_tag);
    }
    block.tenant = last_tenant;
    block.touched_minute = touched_minute;
    const auto it = touched_.empty()
                        ? touched_.end()
                        : touched_.find(LogPlace(entry.segment_number, static_cast<uint32_t>(i)));
    if (it != touched_.end()) {
      block.touched_minute = std::max(block.touched_minute, it->second.minute);
      block.touches = it->second.touches;
    }
    to_enter_.push_back({entry.key, block});
  }
  context_->EnterAll(to_enter_);
  return any_erased || 2 * num_dropped > content.entries.size();
}

}  // namespace deepinfer
