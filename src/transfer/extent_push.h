// Sends the bytes of one transfer, extent by extent, never more than a window of them ahead of what
// was acknowledged; an extent that arrived broken goes once more.
// Thread rule: Run by one thread, OnAck and Stop by any. Owner: HandOffSender.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "base/status.h"
#include "transfer/extent_path.h"
#include "transfer/landing_table.h"

namespace deepinfer {

class ExtentPush {
 public:
  // bytes and path are borrowed. announce is called after the bytes of an extent were sent, where
  // the path needs a message.
  ExtentPush(uint64_t ticket, std::span<const std::byte> bytes, int64_t window_bytes,
             ExtentPath* path, std::function<void(const Extent&)> announce);

  // Returns when everything is acknowledged. deadline: nothing was for so long; else what Stop
  // said, or the errors of the path.
  Status Run(std::chrono::milliseconds stall_limit);

  // Acknowledgements of extents that are not on the way are ignored.
  void OnAck(int64_t offset, bool corrupt);
  void Stop(Status why);

  // After Run.
  Manifest manifest() const;

 private:
  // The next extent to send, once the window has room; size 0: all is acknowledged.
  Status Next(std::chrono::milliseconds stall_limit, Extent* extent);

  const uint64_t ticket_;
  const std::span<const std::byte> bytes_;
  const int64_t window_bytes_;
  ExtentPath* const path_;
  const std::function<void(const Extent&)> announce_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_offset_ = 0;
  std::map<int64_t, Extent> on_the_way_;  // by offset
  std::deque<Extent> again_;              // of these, the ones that arrived broken
  std::set<int64_t> repeated_;            // their offsets; a second time ends the push
  std::vector<uint32_t> crcs_;            // of extents in the order of their offsets
  Status stopped_;
};

}  // namespace deepinfer
