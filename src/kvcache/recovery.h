// Finding what earlier processes left: listing segments, sealing those whose writer died, replaying
// erasures and touches into the index (kv_format.md §18).
// Thread rule: one call at a time, on segments that no writer holds.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/index_log.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_context.h"

namespace deepinfer {

// The segments of one epoch folder with what its logs say about them.
class FolderRecovery {
 public:
  // The folder is ours: open segments are sealed, broken ones repaired or renamed.
  FolderRecovery(StoreContext* context, std::string folder)
      : context_(context), folder_(std::move(folder)) {}

  // Reads the logs and lists the segments. not_found when the folder is gone.
  Status Begin();
  // Removes a folder that holds no segment, not even a bad one; false when it stays.
  bool RemoveIfEmpty();
  // Number of segment files still to be loaded.
  size_t remaining() const { return names_.size() + later_.size(); }
  // Loads one segment into the table and the index. The number of a segment that holds erased
  // records, which have to leave the disk; else 0.
  uint32_t LoadNext();

 private:
  struct Touched {
    uint32_t minute = 0;
    uint8_t touches = 0;
  };
  void ReadTouches();
  Status ReadLog();
  uint32_t Load(const std::string& name);
  // What the segment at `path` holds; its superblock is repaired when that is what it takes.
  Result<SegmentContent> Read(const std::string& path, uint64_t number);
  // The segment cannot be read. Tried again later, put aside, or removed when nobody ever wrote to
  // it.
  void GiveUp(const std::string& name, const Status& status);
  void LogFound(uint32_t segment_number, std::span<const IndexEntry> found);
  int64_t LatestTouchNs(const SegmentContent& content) const;
  // True when records were left out because they are erased.
  bool AddToIndex(uint32_t id, const SegmentContent& content);

  StoreContext* context_;
  std::string folder_;
  bool any_segment_ = false;
  bool keep_log_ = false;  // it holds erasures that others may not have read
  std::vector<std::string> files_to_remove_;
  std::vector<std::string> names_;                 // last is next
  std::unordered_map<uint64_t, Touched> touched_;  // by segment number and record
  LogErasures erasures_;
  std::unordered_map<uint32_t, std::vector<IndexEntry>> open_adds_;  // by number of the segment
  std::vector<std::string> later_;  // could not be read at a bad moment
  int rounds_left_ = kReadTries - 1;
};

}  // namespace deepinfer
