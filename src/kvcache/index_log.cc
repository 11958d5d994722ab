#include "kvcache/index_log.h"

#include <algorithm>
#include <utility>

#include "kvcache/record.h"

namespace deepinfer {
namespace {

constexpr int64_t kEntryBytes = sizeof(IndexEntry);
// Of a log at a time, a multiple of an entry.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

std::string LogPath(const std::string& folder) { return folder + "/index.log"; }

bool IsIntactAt(std::span<const std::byte> chunk, size_t offset) {
  return FromBytes<IndexEntry>(chunk.subspan(offset)).IsIntact();
}

// Fills the chunk with what the log holds at the offset, and parses it; its length. Entries that
// fail their check are taken from a later read where that has them.
Result<size_t> ReadChunk(File* file, int64_t offset, std::vector<std::byte>* chunk,
                         ParsedLog* parsed) {
  DI_ASSIGN_OR_RETURN(const size_t length, ReadUpTo(file, *chunk, offset));
  const std::span<std::byte> bytes = std::span(*chunk).first(length);
  std::vector<std::byte> again;
  for (int tries = 1;; ++tries) {
    *parsed = ParseIndexLog(bytes);
    if (parsed->num_damaged + parsed->num_trailing == 0 || tries == kReadTries) return length;
    again.resize(length);
    const auto reread = ReadUpTo(file, again, offset);
    if (!reread.ok()) continue;
    for (size_t at = 0; at + kEntryBytes <= *reread; at += kEntryBytes) {
      if (IsIntactAt(bytes, at) || !IsIntactAt(again, at)) continue;
      std::copy_n(again.begin() + static_cast<std::ptrdiff_t>(at), kEntryBytes,
                  bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

}  // namespace

Result<LogExtent> VisitIndexLog(FileSystem* files, const std::string& folder,
                                const std::function<void(const IndexEntry&)>& visit) {
  LogExtent extent;
  const auto file = files->Open(LogPath(folder), OpenMode::kRead, false);
  if (file.status().code() == StatusCode::kNotFound) return extent;
  DI_RETURN_IF_ERROR(file.status());
  std::vector<std::byte> chunk(kChunkBytes);
  ParsedLog parsed;
  int64_t failed_behind = 0;  // since the last intact entry
  for (size_t length = chunk.size(); length == chunk.size();) {
    DI_ASSIGN_OR_RETURN(length, ReadChunk(file->get(), extent.end_bytes, &chunk, &parsed));
    if (!parsed.entries.empty()) {
      extent.num_damaged += failed_behind + parsed.num_damaged;
      failed_behind = 0;
      for (const IndexEntry& entry : parsed.entries) visit(entry);
    }
    failed_behind += parsed.num_trailing;
    extent.end_bytes += static_cast<int64_t>(length);
  }
  extent.end_bytes = (extent.end_bytes + kEntryBytes - 1) / kEntryBytes * kEntryBytes;
  return extent;
}

Result<LogContent> ReadIndexLog(FileSystem* files, const std::string& folder) {
  LogContent log;
  const auto keep = [&](const IndexEntry& entry) { log.entries.push_back(entry); };
  DI_ASSIGN_OR_RETURN(log.extent, VisitIndexLog(files, folder, keep));
  return log;
}

Result<std::vector<IndexEntry>> ReadAdds(FileSystem* files, const std::string& folder,
                                         uint32_t segment_number) {
  std::vector<IndexEntry> adds;
  const auto keep = [&](const IndexEntry& entry) {
    if (entry.Is(IndexOp::kAdd) && entry.segment_number == segment_number) adds.push_back(entry);
  };
  DI_RETURN_IF_ERROR(VisitIndexLog(files, folder, keep).status());
  return adds;
}

Result<std::unique_ptr<IndexLog>> IndexLog::Open(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const LogExtent extent,
                      VisitIndexLog(files, folder, [](const IndexEntry&) {}));
  DI_ASSIGN_OR_RETURN(auto file, files->Open(LogPath(folder), OpenMode::kCreateOrOpen, false));
  // A log whose name is lost would take its erasures along.
  if (extent.end_bytes == 0) DI_RETURN_IF_ERROR(files->SyncDirectory(folder));
  return std::unique_ptr<IndexLog>(new IndexLog(folder, std::move(file), extent.end_bytes));
}

Status IndexLog::Append(std::span<const IndexEntry> entries) {
  if (entries.empty()) return OkStatus();
  const std::lock_guard lock(mutex_);
  const auto bytes = std::as_bytes(entries);
  const int64_t offset = std::exchange(size_, size_ + static_cast<int64_t>(bytes.size()));
  DI_RETURN_IF_ERROR(file_->WriteAt(bytes, offset));
  return file_->SyncData();
}

Status IndexLog::AppendErasures(std::span<const IndexEntry> erasures) {
  std::vector<IndexEntry> twice;
  for (const IndexEntry& erasure : erasures) twice.insert(twice.end(), 2, erasure);
  return Append(twice);
}

Status IndexLog::AppendSegmentOp(IndexOp op, uint32_t segment_number) {
  IndexEntry entry;
  entry.op = static_cast<uint8_t>(op);
  entry.segment_number = segment_number;
  entry.Seal();
  return Append({&entry, 1});
}

Status ReplaceIndexLog(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const LogContent log, ReadIndexLog(files, folder));
  return ReplaceFile(files, LogPath(folder), std::as_bytes(std::span(log.entries)),
                     OpenMode::kCreate);
}

IndexEntry EraseKeyEntry(const BlockKey& key, int64_t unix_ns) {
  IndexEntry entry;
  entry.op = static_cast<uint8_t>(IndexOp::kEraseKey);
  entry.key = key;
  entry.page = static_cast<uint32_t>(unix_ns / 1'000'000'000);
  entry.Seal();
  return entry;
}

IndexEntry EraseTenantEntry(uint64_t tenant_tag, int64_t unix_ns) {
  IndexEntry entry;
  entry.op = static_cast<uint8_t>(IndexOp::kEraseTenant);
  entry.tenant_tag = tenant_tag;
  entry.page = static_cast<uint32_t>(unix_ns / 1'000'000'000);
  entry.Seal();
  return entry;
}

IndexEntry DropEntry(const IndexEntry& added) {
  IndexEntry entry = added;
  entry.op = static_cast<uint8_t>(IndexOp::kRecordDropped);
  entry.Seal();
  return entry;
}

void ErasedNames::Add(const IndexEntry& erasure) {
  if (erasure.Is(IndexOp::kEraseKey)) {
    keys.insert(erasure.key);
  } else {
    tenants.insert(erasure.tenant_tag);
  }
}

LogErasures::LogErasures(std::span<const IndexEntry> log) {
  for (const IndexEntry& entry : log) {
    if (IsErasure(entry)) names_.Add(entry);
  }
  if (names_.empty()) return;
  // Places that no erasure has met yet.
  std::unordered_multimap<BlockKey, uint64_t, BlockKeyHash> by_key;
  std::unordered_multimap<uint64_t, uint64_t> by_tenant;
  const auto erase = [&](auto* places, const auto& name) {
    const auto [first, last] = places->equal_range(name);
    for (auto it = first; it != last; ++it) added_[it->second] = true;
    places->erase(first, last);
  };
  for (const IndexEntry& entry : log) {
    if (entry.Is(IndexOp::kAdd) && names_.Hold(entry)) {
      const uint64_t place = LogPlace(entry.segment_number, entry.page);
      added_[place] = false;
      by_key.emplace(entry.key, place);
      by_tenant.emplace(entry.tenant_tag, place);
    } else if (entry.Is(IndexOp::kEraseKey)) {
      erase(&by_key, entry.key);
    } else if (entry.Is(IndexOp::kEraseTenant)) {
      erase(&by_tenant, entry.tenant_tag);
    }
  }
}

bool LogErasures::Mean(const IndexEntry& record) const {
  if (!names_.Hold(record)) return false;
  const auto it = added_.find(LogPlace(record.segment_number, record.page));
  return it == added_.end() || it->second;
}

}  // namespace deepinfer
