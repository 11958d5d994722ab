// The append-only log beside the segments of one folder: what was added, removed and erased, in
// order (kv_format.md §12).
// Thread rule: any thread, one lock. Owner: whoever owns the folder.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kvcache/file_system.h"
#include "kvcache/format.h"

namespace deepinfer {

class IndexLog {
 public:
  // Continues <folder>/index.log behind its last intact entry.
  static Result<std::unique_ptr<IndexLog>> Open(FileSystem* files, const std::string& folder);

  // Appends and makes durable. After an error nothing of it counts.
  Status Append(std::span<const IndexEntry> entries);
  // A segment was sealed or removed.
  Status AppendSegmentOp(IndexOp op, uint32_t segment_number);
  const std::string& folder() const { return folder_; }

 private:
  IndexLog(std::string folder, std::unique_ptr<File> file, int64_t size)
      : folder_(std::move(folder)), file_(std::move(file)), size_(size) {}

  const std::string folder_;

  std::mutex mutex_;
  std::unique_ptr<File> file_;
  int64_t size_;
};

// The intact entries of <folder>/index.log; none when there is no log.
Result<std::vector<IndexEntry>> ReadIndexLog(FileSystem* files, const std::string& folder);
// Puts a copy in the place of the log: whoever still has the old one open writes to nobody.
Status ReplaceIndexLog(FileSystem* files, const std::string& folder);

// Erasures are remembered for longer than the longest class keeps a block.
inline constexpr int64_t kErasureMemorySeconds = int64_t{8} * 24 * 3600;

// An erasure: of a key, or of all blocks of a tenant. The time tells two erasures of one key apart.
IndexEntry EraseKeyEntry(const BlockKey& key, int64_t unix_ns);
IndexEntry EraseTenantEntry(uint64_t tenant_tag, int64_t unix_ns);
inline bool IsErasure(const IndexEntry& entry) {
  return entry.Is(IndexOp::kEraseKey) || entry.Is(IndexOp::kEraseTenant);
}

// Where an entry's record lies in its folder, as one number.
inline uint64_t LogPlace(uint32_t segment_number, uint32_t place) {
  return uint64_t{segment_number} << 32 | place;
}
// Places (segment number, page) of the records that a later erasure of the same log hits.
std::unordered_set<uint64_t> ErasedPlaces(std::span<const IndexEntry> entries);

}  // namespace deepinfer
