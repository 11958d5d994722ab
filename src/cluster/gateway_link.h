// One session of a worker with a gateway, or with a worker that hands over: where its messages go,
// and the credits of events the gateway has not read yet.
// Thread rule: any thread. Owner: WorkerService, for the time of the session; runs share it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cluster/run_output.h"
#include "cluster/session.h"

namespace deepinfer {

class GatewayLink final : public RunOutput {
 public:
  // session is borrowed until Detach.
  GatewayLink(Session* session, uint64_t own, uint64_t peer)
      : session_(session), own_(own), peer_(peer) {}

  void Send(wire::Message message);

  // Keeps the event's credit until the gateway says it is done with it.
  void SendEvent(const std::string& request_id, uint32_t attempt, TokenEvent event) override;
  void OnAck(const std::string& request_id, uint32_t num_events);

  void NoteDispatch(uint64_t seq);
  uint64_t last_dispatch_seq() const;

  void CloseSession();
  // After this nothing reaches the session any more.
  void Detach();

 private:
  void SendLocked(wire::Message message);

  mutable std::mutex mutex_;
  Session* session_;
  const uint64_t own_, peer_;
  uint64_t last_dispatch_seq_ = 0;
  std::unordered_map<std::string, std::deque<std::shared_ptr<void>>> credits_;
};

}  // namespace deepinfer
