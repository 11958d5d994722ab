// The decode side of hand-offs: requests that wait for their state, and the landings it comes into
// (docs/cluster.md §6). A request is ended by whoever takes it out of the table, once.
// Thread rule: any thread; no callback runs under its lock. Owner: WorkerService.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "cluster/hand_off_counters.h"
#include "engine/request.h"
#include "transfer/data_server.h"
#include "transfer/landing_table.h"
#include "transfer/ucx.h"

namespace deepinfer {

namespace wire {
class Commit;
class Extent;
class Message;
class Release;
class Renew;
class Reserve;
class Ticket;
}  // namespace wire

// Which ways bytes may take between workers.
enum class HandOffTransport : unsigned char { kAuto, kSharedMemory, kTcp };

class HandOffReceiver {
 public:
  // Runs the request from its state on; `first` is what the client gets before, without ids where
  // this worker decides the first token.
  using Start = std::function<Status(EngineRequest request, TokenEvent first)>;
  using End = std::function<void(Status)>;
  using Reply = std::function<void(wire::Message)>;

  // A sender: its session (one number each in this process, for a worker that dials again may still
  // have an old one), whether it runs on this machine, and how to answer it.
  struct Peer {
    uint64_t session = 0;
    bool same_host = false;
    bool shares_store = false;  // the persistent cache of this worker
    Reply reply;
  };

  // host: where data connections are taken. Without a data server only peers on this machine can
  // hand over. ucx: offered to senders that have it too; null: to nobody.
  HandOffReceiver(HandOffTransport transport, const LandingOptions& options,
                  const std::string& host, const Clock* clock, const UcxContextPtr& ucx = nullptr);
  ~HandOffReceiver();  // ends what waits as unavailable

  // run names request and attempt (RunName). One of start and end is called, once.
  void Expect(const std::string& run, EngineRequest request, Start start, End end);
  // Ends a request that waits; false when it does not.
  bool GiveUp(const std::string& run, const Status& why);
  void GiveUpAll(const Status& why);

  void OnReserve(const wire::Reserve& message, const Peer& peer);
  void OnRenew(const wire::Renew& message, const Peer& peer);
  void OnExtent(const wire::Extent& message, const Peer& peer);
  void OnCommit(const wire::Commit& message, const Peer& peer);
  void OnRelease(const wire::Release& message, const Peer& peer);
  // Its landings go; the requests wait on until their gateway decides.
  void OnPeerLost(uint64_t session);

  // Ends requests whose sender let its lease run out.
  void Sweep();

  // What will run here once its state has come.
  struct Awaited {
    int32_t requests = 0;
    int64_t tokens = 0;
  };
  Awaited awaited() const;

  // Adds this side's share.
  void Count(HandOffCounters* counters) const;

 private:
  struct Waiting {
    EngineRequest request;
    Start start;
    End end;
    uint64_t ticket = 0;  // 0: none yet
  };
  struct Sender {
    std::string run;
    uint64_t session = 0;
    Reply reply;
    HandOffProfile profile = HandOffProfile::kFull;
    int64_t reserved_us = 0;
  };
  // A request with its landing, out of the tables.
  struct Taken {
    Waiting waiting;
    HandOffProfile profile = HandOffProfile::kFull;
    int64_t reserved_us = 0;
  };

  void ListenByUcx(const UcxContextPtr& ucx);
  void Answer(const Extent& extent, ExtentOutcome outcome, const Reply& reply);
  ExtentOutcome OnInBand(const Extent& extent, const std::string& data);
  // An extent that came over a data connection.
  void OnData(const Extent& extent, ExtentOutcome outcome);
  // Takes a waiting request out, with its landing revoked.
  std::optional<Waiting> TakeOut(const std::string& run);
  bool IsSender(uint64_t session, uint64_t ticket) const;
  // The landing stays with the caller.
  std::optional<Taken> TakeForCommit(uint64_t ticket, uint64_t session);
  // A landing for a request that waits, or why there is none.
  void Grant(const wire::Reserve& message, const Peer& peer, wire::Ticket* ticket);
  // From what point on the request is to run.
  Status SetResume(const wire::Commit& message, HandOffProfile profile, const TokenEvent& first,
                   EngineRequest* request);

  const HandOffTransport transport_;
  const Clock* const clock_;
  LandingTable landings_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Waiting> waiting_;  // by run
  std::unordered_map<uint64_t, Sender> senders_;      // by ticket
  std::atomic<int64_t> bytes_by_ucx_{0};
  // Last: their threads use the rest.
  std::unique_ptr<DataServer> data_server_;
  std::unique_ptr<UcxServer> ucx_server_;
};

// Names one attempt of a request, also inside the engine.
std::string RunName(const std::string& request_id, uint32_t attempt);

}  // namespace deepinfer
