// Sends the bytes of one transfer while they come about, extent by extent, never more of them ahead
// of what was acknowledged than the window has slots; an extent that arrived broken goes once more.
// Thread rule: Run by one thread, everything else by any. Owner: a hand-off.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "transfer/extent_path.h"
#include "transfer/landing_table.h"

namespace deepinfer {

// The bytes of an extent, which may lie scattered.
struct ExtentBytes {
  int64_t offset = 0;
  std::vector<std::span<const std::byte>> parts;  // at most kExtentBytes together
  // Keeps the parts as they are until the push is over, or until they have arrived.
  std::shared_ptr<void> keep;
};

struct ExtentPushOptions {
  // Without an acknowledgement of what is on the way for so long the receiver is lost.
  std::chrono::milliseconds stall_limit{0};
};

// Of the landing a push goes to.
struct ExtentPushTarget {
  uint64_t ticket = 0;
  int64_t window_bytes = 0;
  ExtentPath* path = nullptr;  // borrowed
  // Called after the bytes of an extent were sent, where the path needs a message.
  std::function<void(const Extent&)> announce;
  // Called so often while nothing is there to be sent.
  std::function<void()> idle;
  std::chrono::milliseconds idle_interval{1000};
};

class ExtentPush {
 public:
  explicit ExtentPush(const ExtentPushOptions& options);

  // Takes an extent that does not overlap others; nothing after Close.
  void Add(ExtentBytes bytes);
  void Close();
  // What has arrived is let go of from now on.
  void LetGoEarly();
  // Forgets what was to be sent. Not while it runs.
  void LetGoAll();

  // Returns when all that was added is acknowledged and the push is closed. Once only.
  // invalid_request: a window that holds no whole number of extents; deadline: the stall limit
  // passed; else what Stop said, or the errors of the path.
  Status Run(const ExtentPushTarget& target);

  // Acknowledgements of extents that are not on the way are ignored.
  void OnAck(int64_t offset, bool corrupt);
  // Ends Run, or the next one. The first reason stays.
  void Stop(Status why);

  // After Run.
  Manifest manifest() const;

 private:
  struct Sent {
    Extent extent;
    ExtentBytes bytes;
  };

  // Waits for the next extent to send; false: all is acknowledged.
  Result<bool> Next(const ExtentPushTarget& target, Sent* next);
  // Fills gathered_ and what depends on the bytes; from then on they are on the way.
  void Gather(Sent* next);
  // Under the lock: the next extent that may go now.
  bool Choose(uint64_t ticket, Sent* next);

  const ExtentPushOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ExtentPath* path_ = nullptr;  // while it runs
  std::deque<ExtentBytes> queue_;
  std::map<int64_t, Sent> on_the_way_;  // by offset
  std::deque<int64_t> again_;           // of these, the ones that arrived broken
  std::set<int64_t> repeated_;          // a second time ends the push
  std::vector<uint32_t> free_slots_;
  std::map<int64_t, uint32_t> crcs_;            // of what was sent, by offset
  std::vector<std::shared_ptr<void>> arrived_;  // what keeps it
  int64_t num_acks_ = 0;
  int64_t size_bytes_ = 0;
  bool closed_ = false;
  bool lets_go_early_ = false;
  Status stopped_;
  std::vector<std::byte> gathered_;  // of the thread that runs
};

}  // namespace deepinfer
