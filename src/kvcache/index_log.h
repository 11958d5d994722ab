// The append-only log beside the segments of one folder: what was added, removed and erased, in
// order (kv_format.md §12).
// Thread rule: any thread, one lock. Owner: whoever owns the folder.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "kvcache/file_system.h"
#include "kvcache/format.h"

namespace deepinfer {

class IndexLog {
 public:
  // Continues <folder>/index.log behind its last intact entry.
  static Result<std::unique_ptr<IndexLog>> Open(FileSystem* files, const std::string& folder);

  // Appends and makes durable. After an error nothing of it counts.
  Status Append(std::span<const IndexEntry> entries);
  // One operation about a segment or a key.
  Status AppendOp(IndexOp op, uint32_t segment_number, const BlockKey& key, uint64_t tenant_tag);

 private:
  IndexLog(std::unique_ptr<File> file, int64_t size) : file_(std::move(file)), size_(size) {}

  std::mutex mutex_;
  std::unique_ptr<File> file_;
  int64_t size_;
};

// The intact entries of <folder>/index.log; none when there is no log.
Result<std::vector<IndexEntry>> ReadIndexLog(FileSystem* files, const std::string& folder);

}  // namespace deepinfer
