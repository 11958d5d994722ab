#include "kvcache/index_log.h"

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
  return std::unique_ptr<IndexLog>(new IndexLog(std::move(file), size));
}

Status IndexLog::Append(std::span<const IndexEntry> entries) {
  const std::lock_guard lock(mutex_);
  const auto bytes = std::as_bytes(entries);
  DI_RETURN_IF_ERROR(file_->WriteAt(bytes, size_));
  DI_RETURN_IF_ERROR(file_->SyncData());
  size_ += static_cast<int64_t>(bytes.size());
  return OkStatus();
}

Status IndexLog::AppendOp(IndexOp op, uint32_t segment_number, const BlockKey& key,
                          uint64_t tenant_tag) {
  IndexEntry entry;
  entry.op = static_cast<uint8_t>(op);
  entry.segment_number = segment_number;
  entry.key = key;
  entry.tenant_tag = tenant_tag;
  entry.Seal();
  return Append({&entry, 1});
}

}  // namespace deepinfer
