#include "kvcache/index_log.h"

#include <algorithm>
#include <unordered_map>

#include "kvcache/record.h"

namespace deepinfer {
namespace {

// 64 bytes for each of the blocks of a terabyte, several times over.
constexpr int64_t kMaxLogBytes = int64_t{8} << 30;

std::string LogPath(const std::string& folder) { return folder + "/index.log"; }

}  // namespace

Result<std::vector<IndexEntry>> ReadIndexLog(FileSystem* files, const std::string& folder) {
  const auto bytes = ReadWholeFile(files, LogPath(folder), kMaxLogBytes);
  if (bytes.status().code() == StatusCode::kNotFound) return std::vector<IndexEntry>{};
  if (!bytes.ok()) return bytes.status();
  return ParseIndexLog(*bytes);
}

Result<std::unique_ptr<IndexLog>> IndexLog::Open(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const auto entries, ReadIndexLog(files, folder));
  DI_ASSIGN_OR_RETURN(auto file, files->Open(LogPath(folder), OpenMode::kCreateOrOpen, false));
  const auto size = static_cast<int64_t>(entries.size() * sizeof(IndexEntry));
  // A log whose name is lost would take its erasures along.
  if (size == 0) DI_RETURN_IF_ERROR(files->SyncDirectory(folder));
  return std::unique_ptr<IndexLog>(new IndexLog(folder, std::move(file), size));
}

Status IndexLog::Append(std::span<const IndexEntry> entries) {
  if (entries.empty()) return OkStatus();
  const std::lock_guard lock(mutex_);
  const auto bytes = std::as_bytes(entries);
  DI_RETURN_IF_ERROR(file_->WriteAt(bytes, size_));
  DI_RETURN_IF_ERROR(file_->SyncData());
  size_ += static_cast<int64_t>(bytes.size());
  return OkStatus();
}

Status IndexLog::AppendSegmentOp(IndexOp op, uint32_t segment_number) {
  IndexEntry entry;
  entry.op = static_cast<uint8_t>(op);
  entry.segment_number = segment_number;
  entry.Seal();
  return Append({&entry, 1});
}

Status ReplaceIndexLog(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const auto entries, ReadIndexLog(files, folder));
  const std::string path = LogPath(folder) + ".new";
  if (const Status removed = files->Remove(path);
      !removed.ok() && removed.code() != StatusCode::kNotFound) {
    return removed;
  }
  {
    DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kCreate, false));
    DI_RETURN_IF_ERROR(file->WriteAt(std::as_bytes(std::span(entries)), 0));
    DI_RETURN_IF_ERROR(file->SyncData());
  }
  DI_RETURN_IF_ERROR(files->Rename(path, LogPath(folder)));
  return files->SyncDirectory(folder);
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

std::unordered_set<uint64_t> ErasedPlaces(std::span<const IndexEntry> entries) {
  std::unordered_set<uint64_t> erased;
  if (std::ranges::none_of(entries, IsErasure)) return erased;
  std::unordered_multimap<BlockKey, uint64_t, BlockKeyHash> by_key;
  std::unordered_multimap<uint64_t, uint64_t> by_tenant;
  for (const IndexEntry& entry : entries) {
    if (entry.Is(IndexOp::kAdd)) {
      const uint64_t place = LogPlace(entry.segment_number, entry.page);
      by_key.emplace(entry.key, place);
      by_tenant.emplace(entry.tenant_tag, place);
    } else if (entry.Is(IndexOp::kEraseKey)) {
      const auto [first, last] = by_key.equal_range(entry.key);
      for (auto it = first; it != last; ++it) erased.insert(it->second);
      by_key.erase(first, last);
    } else if (entry.Is(IndexOp::kEraseTenant)) {
      const auto [first, last] = by_tenant.equal_range(entry.tenant_tag);
      for (auto it = first; it != last; ++it) erased.insert(it->second);
      by_tenant.erase(first, last);
    }
  }
  return erased;
}

}  // namespace deepinfer
