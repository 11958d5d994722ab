// The prefill side of hand-offs: keeps the state of a finished prompt until a decode worker has it
// or nobody wants it any more (docs/cluster.md §6). Hand-offs to one worker go one after the other,
// over one session; a worker that stands still delays only its own.
// Thread rule: any thread; callbacks run on the thread of a link. Owner: WorkerService.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/hand_off_counters.h"
#include "cluster/hand_off_receiver.h"
#include "cluster/session.h"
#include "cluster/worker.h"
#include "engine/request.h"

namespace deepinfer {

// A prompt that was run, for the worker that runs the answer.
struct HandOff {
  std::string request_id;
  uint32_t attempt = 0;
  std::string endpoint;  // of the decode worker
  TokenEvent first;      // what the client got, with the image of the state
  // unavailable: the worker did not take it; cancelled: Cancel was called.
  std::function<void(Status)> done;
};

class HandOffSender {
 public:
  // own says what peers must fit to.
  HandOffSender(HandOffTransport transport, WorkerInfo own, SecurityPtr security);
  ~HandOffSender();  // ends what is left as unavailable

  // The state is pinned until `done` was called, which happens once.
  void Start(HandOff hand_off);
  // Ends a hand-off of this run that was started and is not over.
  void Cancel(const std::string& run);

  // Adds this side's share.
  void Count(HandOffCounters* counters) const;

 private:
  class Link;

  void Finish(const HandOff& hand_off, const Status& status);

  const HandOffTransport transport_;
  const WorkerInfo own_;
  const SecurityPtr security_;
  mutable std::mutex mutex_;
  HandOffCounters counters_;
  std::unordered_map<std::string, std::unique_ptr<Link>> links_;  // by endpoint
};

}  // namespace deepinfer
