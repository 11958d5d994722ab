// Finding what earlier processes left: listing segments, sealing those whose writer died, replaying
// erasures and touches into the index (kv_format.md §18).
// Thread rule: one call at a time, on segments that no writer holds. With background threads files
// are read ahead on one more, which ends before the object.
#pragma once

#include <deque>
#include <future>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvcache/index_log.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_context.h"

namespace deepinfer {

// The segments of one epoch folder with what its logs say about them.
class FolderRecovery {
 public:
  // The folder is ours: open segments are sealed, broken ones repaired or renamed. erased: what its
  // log does not tell; borrowed.
  FolderRecovery(StoreContext* context, std::string folder, ErasedSinceOpen* erased)
      : context_(context), folder_(std::move(folder)), erased_(erased) {}

  // Reads the logs and lists the segments. not_found when the folder is gone.
  Status Begin();
  // Removes a folder that holds no segment, not even a bad one; false when it stays.
  bool RemoveIfEmpty();
  // Number of segment files still to be loaded.
  size_t remaining() const {
    return names_.size() + later_.size() + num_read_ahead_ + arrived_.size();
  }
  // Loads one segment into the table and the index. The number of a segment that is to be
  // rewritten, because it holds erased records or mostly dropped ones; else 0.
  uint32_t LoadNext();

 private:
  struct Touched {
    uint32_t minute = 0;
    uint8_t touches = 0;
  };
  struct NamedContent {
    std::string name;
    Result<SegmentContent> content;
  };
  void ReadTouches();
  Status ReadLog();
  // The next names, newest first; at least one while any remain.
  std::vector<std::string> TakeNames(size_t most);
  std::deque<NamedContent> ReadAll(const std::vector<std::string>& names) const;
  // Makes at least one segment arrive.
  void Arrive();
  uint32_t Load(NamedContent segment);
  // What the segment of this name holds; its superblock is repaired when that is what it takes.
  Result<SegmentContent> Read(const std::string& name) const;
  // The segment cannot be read. Tried again later, put aside, or removed when nobody ever wrote to
  // it.
  void GiveUp(const std::string& name, const Status& status);
  void LogFound(uint32_t segment_number, std::span<const IndexEntry> found);
  int64_t LatestTouchNs(const SegmentContent& content) const;
  // True when the segment is to be rewritten: it holds erased records, or mostly dropped ones.
  bool AddToIndex(uint32_t id, const SegmentContent& content);

  StoreContext* context_;
  std::string folder_;
  ErasedSinceOpen* erased_;
  bool any_segment_ = false;
  bool keep_log_ = false;  // it holds erasures that others may not have read
  std::vector<std::string> files_to_remove_;
  std::vector<std::string> names_;                 // last is next
  std::unordered_map<uint64_t, Touched> touched_;  // by segment number and record
  LogErasures erasures_;
  std::unordered_set<uint64_t> dropped_;                             // by segment number and page
  std::unordered_map<uint32_t, std::vector<IndexEntry>> open_adds_;  // by number of the segment
  std::vector<std::string> later_;  // could not be read at a bad moment
  int rounds_left_ = kReadTries - 1;
  std::deque<NamedContent> arrived_;                  // read, to be entered next
  std::vector<KeyedBlock> to_enter_;                  // memory kept from one segment to the next
  size_t num_read_ahead_ = 0;                         // segments
  std::future<std::deque<NamedContent>> read_ahead_;  // last: it uses what is above
};

}  // namespace deepinfer
