// Follows the index log of a folder that another process owns, and so knows its blocks: what was
// added, sealed, removed, erased (kv_format.md §21).
//
// The log is read in whole pages past the page cache and until a checksum fails, never up to a
// reported size: on network file systems the size of an open file lags behind. What fails in front
// of entries that do not is passed over when it stays so.
// Thread rule: one thread. Owner: PeerFollower.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/erasure.h"
#include "kvcache/index_log.h"
#include "kvcache/store_context.h"

namespace deepinfer {

class PeerLog {
 public:
  PeerLog(StoreContext* context, std::string folder)
      : context_(context), folder_(std::move(folder)) {}

  // Applies what was appended since the last call, erasures through the eraser; the number of
  // entries. not_found when the folder is gone.
  Result<int64_t> Follow(Eraser* eraser);

  // The folder was renamed: an adopter took it, with a copy of its log that is read from the begin.
  void MoveTo(std::string folder);
  // Numbers in the store's table.
  std::vector<uint32_t> Segments() const;

  const std::string& folder() const { return folder_; }
  int64_t followed_us() const { return followed_us_; }

 private:
  Result<std::vector<IndexEntry>> ReadNew();
  // Whether what cannot be read here, in front of what can, was tried for long enough.
  bool IsPassedOver(int64_t gap_bytes);
  void Apply(const IndexEntry& entry);
  void Add(const IndexEntry& entry);
  int64_t RecordOf(const IndexEntry& entry) const;
  // The table's number of a segment; 0 when it is gone or not ours to read.
  uint32_t SegmentOf(uint32_t number);
  uint32_t OpenSegment(uint32_t number);

  StoreContext* context_;
  std::string folder_;
  std::unique_ptr<File> log_;
  int64_t offset_ = 0;
  int64_t gap_bytes_ = -1;  // where the log cannot be read although it goes on; -1: nowhere
  int64_t gap_since_us_ = 0;
  std::vector<IndexEntry> unheard_;               // while the log is read from its begin
  int64_t followed_us_ = 0;                       // last time the log was read to its end
  std::unordered_map<uint32_t, uint32_t> known_;  // number in the folder to number in the table
};

}  // namespace deepinfer
