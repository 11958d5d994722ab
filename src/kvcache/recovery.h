// Finding what earlier processes left: listing segments, sealing those whose writer died, replaying
// erasures and touches into the index (kv_format.md §18).
// Thread rule: one call at a time, on segments that no writer holds.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvcache/segment_file.h"
#include "kvcache/store_context.h"

namespace deepinfer {

// The segments of one epoch folder with what its logs say about them.
class FolderRecovery {
 public:
  // The folder is ours: open segments are sealed, broken ones renamed.
  FolderRecovery(StoreContext* context, std::string folder)
      : context_(context), folder_(std::move(folder)) {}

  // Reads the logs and lists the segments. not_found when the folder is gone.
  Status Begin();
  // Removes a folder that holds no segment, not even a bad one; false when it stays.
  bool RemoveIfEmpty();
  // Number of segment files still to be loaded.
  size_t remaining() const { return names_.size(); }
  // Loads one segment into the table and the index. The number of a segment that holds erased
  // records, which have to leave the disk; else 0.
  uint32_t LoadNext();

 private:
  struct Touched {
    uint32_t minute = 0;
    uint8_t touches = 0;
  };
  Status ReadTouches();
  Status ReadErasures();
  uint32_t Load(const std::string& name);
  void LogFound(std::span<const IndexEntry> found);
  // True when records were left out because they are erased.
  bool AddToIndex(uint32_t id, const SegmentContent& content);

  StoreContext* context_;
  std::string folder_;
  bool any_segment_ = false;
  bool keep_log_ = false;  // it holds erasures that others may not have read
  std::vector<std::string> files_to_remove_;
  std::vector<std::string> names_;                 // last is next
  std::unordered_map<uint64_t, Touched> touched_;  // by segment number and record
  std::unordered_set<uint64_t> erased_;            // LogPlace of records
};

}  // namespace deepinfer
