#include "kvcache/peer_log.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kvcache/page_buffer.h"
#include "kvcache/record.h"
#include "kvcache/segment_file.h"

namespace deepinfer {
namespace {

// Of a log at a time; a busy peer adds a few kilobytes between two looks.
constexpr int64_t kReadBytes = 256 * 1024;
// Pages of a log may become visible out of order, and reads may go wrong: for so long they are
// tried again before what is behind them counts.
constexpr int64_t kGapPatienceUs = 2'000'000;
constexpr auto kEntryBytes = static_cast<int64_t>(sizeof(IndexEntry));

}  // namespace

Result<std::vector<IndexEntry>> PeerLog::ReadNew() {
  if (log_ == nullptr) {
    DI_ASSIGN_OR_RETURN(log_, context_->files->Open(folder_ + "/index.log", OpenMode::kRead, true));
  }
  PageBuffer buffer(kReadBytes);
  if (!buffer.ok()) return ResourceExhausted("no memory for a log");
  std::vector<IndexEntry> entries;
  int64_t from = offset_;  // beyond offset_ while only entries that fail were found
  for (;;) {
    const int64_t begin = from / kPageBytes * kPageBytes;
    DI_ASSIGN_OR_RETURN(const size_t read, log_->ReadAt(buffer.bytes(), begin));
    const auto skip = static_cast<size_t>(from - begin);
    if (read <= skip) return entries;
    const ParsedLog found =
        ParseIndexLog(std::span<const std::byte>(buffer.bytes()).subspan(skip, read - skip));
    if (found.entries.empty()) {
      if (read < buffer.bytes().size()) return entries;  // a torn tail, or not written yet
      from = begin + kReadBytes;
      continue;
    }
    const int64_t num_failed = (from - offset_) / kEntryBytes + found.num_damaged;
    auto taken = static_cast<int64_t>(from == offset_ ? found.num_leading : 0);
    const int64_t gap_bytes = offset_ + taken * kEntryBytes;
    const bool is_whole = num_failed == 0 || IsPassedOver(gap_bytes);
    if (is_whole) {
      taken = static_cast<int64_t>(found.entries.size());
      offset_ = from + (taken + found.num_damaged) * kEntryBytes;
      context_->counters.damaged_log_entries += num_failed;
      gap_bytes_ = -1;
    } else {
      offset_ = gap_bytes;
    }
    entries.insert(entries.end(), found.entries.begin(), found.entries.begin() + taken);
    if (!is_whole) return entries;
    from = offset_;
  }
}

bool PeerLog::IsPassedOver(int64_t gap_bytes) {
  const int64_t now_us = context_->clock->NowUs();
  if (gap_bytes_ != gap_bytes) {
    gap_bytes_ = gap_bytes;
    gap_since_us_ = now_us;
  }
  if (now_us - gap_since_us_ < kGapPatienceUs) return false;
  Log(LogLevel::kWarning, "kv.log_entries_damaged", {{"path", folder_}, {"offset", gap_bytes}});
  return true;
}

Result<int64_t> PeerLog::Follow(Eraser* eraser) {
  const int64_t before = offset_;
  auto entries = ReadNew();
  if (!entries.ok()) {
    // Opened again next time: the handle may be what went bad.
    log_ = nullptr;
    offset_ = before;
    return entries.status();
  }
  // From the begin, what was erased later is never entered, not even for a moment.
  const bool first = before == 0;
  LogErasures erased;
  if (first) {
    std::vector<IndexEntry> log = *entries;
    // What other logs say, and the owner of this one has yet to hear of.
    const auto unheard = eraser->Unheard(folder_, log);
    log.insert(log.end(), unheard.begin(), unheard.end());
    erased = LogErasures(log);
  }
  for (const IndexEntry& entry : *entries) {
    if (!entry.IsKnown()) continue;
    if (IsErasure(entry)) {
      (void)eraser->Heard(folder_, entry, !first);
    } else if (!entry.Is(IndexOp::kAdd) || !erased.Mean(entry)) {
      Apply(entry);
    }
  }
  std::erase_if(known_, [](const auto& item) { return item.second == 0; });
  followed_us_ = context_->clock->NowUs();
  return static_cast<int64_t>(entries->size());
}

void PeerLog::Apply(const IndexEntry& entry) {
  if (entry.Is(IndexOp::kAdd)) return Add(entry);
  const auto it = known_.find(entry.segment_number);
  if (it == known_.end() || it->second == 0) return;
  if (entry.Is(IndexOp::kSegmentRemoved)) {
    // Entries that still point there are swept out together, after a while; until then they miss.
    context_->segments.Remove(it->second);
    context_->segments.NoteMissing(it->second);
    it->second = 0;
  } else if (entry.Is(IndexOp::kSegmentSealed)) {
    const std::string path = folder_ + "/" + SegmentFileName(entry.segment_number, "seg");
    context_->segments.Update(it->second, [&](SegmentInfo* info) {
      info->path = path;
      if (info->state == SegmentState::kOpen) info->state = SegmentState::kSealed;
    });
  } else if (entry.Is(IndexOp::kRecordDropped)) {
    (void)context_->index.Erase(entry.key, {it->second, static_cast<uint32_t>(RecordOf(entry))});
  }
}

int64_t PeerLog::RecordOf(const IndexEntry& entry) const {
  return (int64_t{entry.page} - 1) / context_->options.layout.record_pages();
}

void PeerLog::Add(const IndexEntry& entry) {
  const uint32_t id = SegmentOf(entry.segment_number);
  if (id == 0) return;
  const int64_t record = RecordOf(entry);
  if (entry.page == 0 || record >= context_->options.layout.segment_capacity()) return;
  IndexedBlock block;
  block.location = {id, static_cast<uint32_t>(record)};
  block.retention = static_cast<RetentionClass>(entry.retention);
  block.replay_gen = static_cast<uint8_t>(std::min<uint16_t>(entry.replay_gen, 255));
  block.tenant = context_->tenants.SlotOf(entry.tenant_tag);
  block.touched_minute = StoreMinute(context_->wall_clock->UnixNs());
  (void)context_->Enter(entry.key, block);
  context_->segments.Update(
      id, [&](SegmentInfo* info) { info->num_records = std::max(info->num_records, record + 1); });
}

uint32_t PeerLog::SegmentOf(uint32_t number) {
  if (const auto it = known_.find(number); it != known_.end()) return it->second;
  const uint32_t id = OpenSegment(number);
  known_[number] = id;
  return id;
}

uint32_t PeerLog::OpenSegment(uint32_t number) {
  for (const char* extension : {"seg", "open"}) {
    const std::string path = folder_ + "/" + SegmentFileName(number, extension);
    auto superblock = ReadSuperblock(context_->files, path, context_->options.namespace_id);
    if (superblock.status().code() == StatusCode::kNotFound) continue;
    if (!superblock.ok() || *superblock->Layout() != context_->options.layout) {
      ++context_->counters.foreign_segments;
      Log(LogLevel::kWarning, "kv.segment_foreign",
          {{"path", path}, {"status", superblock.status()}});
      return 0;
    }
    SegmentInfo info;
    info.path = path;
    info.folder = folder_;
    info.number = number;
    info.superblock = *superblock;
    info.state = extension == std::string("seg") ? SegmentState::kSealed : SegmentState::kOpen;
    info.peer = true;
    return context_->segments.Add(std::move(info));
  }
  return 0;  // expired and removed; the log says so further on
}

void PeerLog::MoveTo(std::string folder) {
  for (const uint32_t id : Segments()) {
    context_->segments.Update(id, [&](SegmentInfo* info) {
      info->path = folder + info->path.substr(info->path.rfind('/'));
      info->folder = folder;
    });
  }
  folder_ = std::move(folder);
  log_ = nullptr;
  offset_ = 0;
  gap_bytes_ = -1;
}

std::vector<uint32_t> PeerLog::Segments() const {
  std::vector<uint32_t> ids;
  for (const auto& [number, id] : known_) {
    if (id != 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace deepinfer
