// The append-only log beside the segments of one folder: what was added, removed and erased, in
// order (kv_format.md §12).
// Thread rule: any thread, one lock. Owner: whoever owns the folder.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kvcache/file_system.h"
#include "kvcache/format.h"

namespace deepinfer {

struct LogExtent {
  int64_t num_damaged = 0;  // entries that cannot be read, though some behind them can
  int64_t end_bytes = 0;    // where the next one goes: behind every byte there is
};

// A log as it stands on disk.
struct LogContent {
  std::vector<IndexEntry> entries;  // the intact ones, in order
  LogExtent extent;
};

class IndexLog {
 public:
  // Continues <folder>/index.log behind everything that it holds: what cannot be read today is
  // written over as little as what can.
  static Result<std::unique_ptr<IndexLog>> Open(FileSystem* files, const std::string& folder);

  // Appends and makes durable. After an error parts of it may be there, and others may have read
  // them: the next entries go behind it.
  Status Append(std::span<const IndexEntry> entries);
  // The same for erasures, each twice: one damaged entry may not bring an erased block back.
  Status AppendErasures(std::span<const IndexEntry> erasures);
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

// Shows the intact entries of <folder>/index.log in order; none when there is no log. Where a check
// fails it is read again before that is believed.
Result<LogExtent> VisitIndexLog(FileSystem* files, const std::string& folder,
                                const std::function<void(const IndexEntry&)>& visit);
// The same, all of them at once.
Result<LogContent> ReadIndexLog(FileSystem* files, const std::string& folder);
// The records that the log says were added to a segment.
Result<std::vector<IndexEntry>> ReadAdds(FileSystem* files, const std::string& folder,
                                         uint32_t segment_number);
// Puts a copy in the place of the log: whoever still has the old one open writes to nobody.
Status ReplaceIndexLog(FileSystem* files, const std::string& folder);

// Erasures are remembered for longer than the longest class keeps a block.
inline constexpr int64_t kErasureMemorySeconds = int64_t{8} * 24 * 3600;

// An erasure: of a key, or of all blocks of a tenant. The time tells two erasures of one key apart.
IndexEntry EraseKeyEntry(const BlockKey& key, int64_t unix_ns);
IndexEntry EraseTenantEntry(uint64_t tenant_tag, int64_t unix_ns);
// The record that `added` lists has left for good; the block may be stored again elsewhere.
IndexEntry DropEntry(const IndexEntry& added);
inline bool IsErasure(const IndexEntry& entry) {
  return entry.Is(IndexOp::kEraseKey) || entry.Is(IndexOp::kEraseTenant);
}

// Where an entry's record lies in its folder, as one number.
inline uint64_t LogPlace(uint32_t segment_number, uint32_t place) {
  return uint64_t{segment_number} << 32 | place;
}
// Keys and tenants that erasures name.
struct ErasedNames {
  // Precondition: IsErasure(erasure).
  void Add(const IndexEntry& erasure);
  bool empty() const { return keys.empty() && tenants.empty(); }
  bool Hold(const IndexEntry& record) const {
    return (!keys.empty() && keys.contains(record.key)) ||
           (!tenants.empty() && tenants.contains(record.tenant_tag));
  }

  std::unordered_set<BlockKey, BlockKeyHash> keys;
  std::unordered_set<uint64_t> tenants;
};

// Which records the erasures of a log mean.
class LogErasures {
 public:
  LogErasures() = default;
  explicit LogErasures(std::span<const IndexEntry> log);

  // The record was added before an erasure of its key or tenant. Of one that the log does not
  // list, because its group was never logged or the entry is damaged, nobody knows when it was
  // added: any such erasure means it.
  bool Mean(const IndexEntry& record) const;

 private:
  ErasedNames names_;
  std::unordered_map<uint64_t, bool> added_;  // records of these, by LogPlace: erased since
};

}  // namespace deepinfer
