// The prefill side of hand-offs: one transfer for each prompt that runs for another worker, and one
// connection for each of those workers (docs/cluster.md §6). A worker that stands still delays
// only what goes to it.
// Thread rule: any thread. Owner: WorkerService.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "cluster/hand_off_counters.h"
#include "cluster/hand_off_transfer.h"
#include "transfer/extent_path.h"
#include "transfer/ucx.h"

namespace deepinfer {

struct HandOffSenderOptions {
  HandOffTransport transport = HandOffTransport::kAuto;
  UcxContextPtr ucx = nullptr;  // used with workers that have it too; null: never
  SecurityPtr security;
  // A connection that nobody used for so long is closed: a worker may be gone for good.
  int64_t idle_connection_us = 60'000'000;
  // As for gateways: a worker that says nothing for so long hangs (docs/cluster.md §5).
  std::chrono::milliseconds greet_limit{3000};
  // Whether the prompts of this worker get on: what waits for one that does not is given up by the
  // other side. Empty: they always do.
  std::function<bool()> gets_on;
  // Wraps the way that bytes take; empty but in tests of faults.
  std::function<std::unique_ptr<ExtentPath>(std::unique_ptr<ExtentPath>)> wrap_path;
};

class HandOffSender {
 public:
  // own says what peers must fit to; clock is borrowed.
  HandOffSender(HandOffSenderOptions options, WorkerInfo own, const Clock* clock);
  ~HandOffSender();  // ends what is left as unavailable

  // For a prompt that is about to run. Costs nothing until it has something to send.
  std::shared_ptr<HandOffTransfer> Open(HandOffTarget target);
  // Ends the hand-off of this run, if it is not over.
  void Cancel(const std::string& run);

  // House-keeping: ends what is over and connections that are idle.
  void Sweep();

  // Adds this side's share.
  void Count(HandOffCounters* counters) const;
  size_t num_connections() const;

  // For transfers.
  const HandOffSenderOptions& options() const { return options_; }
  const WorkerInfo& own() const { return own_; }
  // The session with a worker, dialled by the first that needs it. cancelled: soon after `stopped`
  // says so.
  Result<std::shared_ptr<HandOffConnection>> Connect(const std::string& endpoint,
                                                     const std::function<bool()>& stopped);
  void NoteStart(std::shared_ptr<HandOffTransfer> transfer);
  // completed: its prompt was done.
  void NoteEnd(const HandOffTransfer& transfer, const Status& status, int64_t size_bytes,
               bool completed);
  void Forget(const HandOffTransfer* transfer);

 private:
  struct Link {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<HandOffConnection> connection;
    bool dialling = false;
    uint64_t num_dials = 0;     // that are over
    Status failure;             // of the last one
    int64_t idle_since_us = 0;  // 0: it is in use
  };
  // True when the link can go. Only the table refers to it.
  bool IsIdle(Link* link, int64_t now_us) const;

  const HandOffSenderOptions options_;
  const WorkerInfo own_;
  const Clock* const clock_;
  mutable std::mutex mutex_;
  HandOffCounters counters_;
  std::unordered_map<std::string, std::shared_ptr<HandOffTransfer>> transfers_;  // by run
  std::list<std::shared_ptr<HandOffTransfer>> started_;           // until they were joined
  std::unordered_map<std::string, std::shared_ptr<Link>> links_;  // by endpoint
};

}  // namespace deepinfer
