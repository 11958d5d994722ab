// Uses of blocks on their way to the owners of their segments: counted here, written to touch logs
// now and then, read from those of peers (kv_format.md §13, §21). Advisory: what is lost shortens a
// block's life by the time since the last page.
// Thread rule: Note and Latest from any thread, the rest from the janitor's. Owner: the janitor.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcache/store_context.h"

namespace deepinfer {

// A page of a touch log, read again when it fails its check: it may be broken all the same. False
// when it is not there, or not to be had.
bool ReadTouchPage(File* file, int64_t offset, TouchPage* page);

class TouchLog {
 public:
  explicit TouchLog(StoreContext* context) : context_(context) {}

  // A use of the block at this place.
  void Note(const BlockLocation& location);
  // Appends the uses since the last call: to the touch logs of our own segments' folders, and for
  // segments of peers to files of theirs in own_folder.
  void Write(const std::string& own_folder);
  // Reads what peers wrote about the segments in these folders of ours since the last call.
  void ReadPeers(const std::vector<std::string>& owned_folders);

  // What peers told about a record of ours.
  struct Told {
    uint32_t minute = 0;  // StoreMinute of the last use
    uint8_t touches = 0;
  };
  Told TellAbout(const BlockLocation& location) const;
  // The segment is gone.
  void Forget(uint32_t segment);

 private:
  void Append(const std::string& path, const std::vector<TouchItem>& items);
  void ReadFrom(const std::string& path, const std::unordered_map<uint32_t, uint32_t>& segments);

  StoreContext* context_;
  mutable std::mutex mutex_;                      // never held during a file operation
  std::unordered_map<uint64_t, uint32_t> noted_;  // by segment and record
  std::unordered_map<uint32_t, std::unordered_map<uint32_t, Told>> told_;  // by segment, record
  std::map<std::string, int64_t> offsets_;                                 // read so far, by path
};

}  // namespace deepinfer
