// A session with a decode worker, shared by the hand-offs to it.
// Thread rule: any thread; listeners are called on the connection's own. Owner: HandOffSender and
// the hand-offs that use it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/result.h"
#include "cluster/session.h"
#include "cluster/worker.h"

namespace deepinfer {

namespace wire {
class Committed;
class ExtentAck;
class Message;
class Ticket;
}  // namespace wire

class HandOffConnection {
 public:
  // What one hand-off hears, under the lock of the connection: it must not call back.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnTicket(const wire::Ticket& ticket) = 0;
    virtual void OnExtentAck(const wire::ExtentAck& ack) = 0;
    virtual void OnCommitted(const wire::Committed& committed) = 0;
    virtual void OnLost(const Status& why) = 0;
  };

  struct DialOptions {
    SecurityPtr security;
    std::chrono::milliseconds greet_limit;  // for the first word of the peer
    std::function<bool()> stopped;          // true: nobody waits for it any more
  };
  // own says what the peer must fit to. unavailable: out of reach, or it refuses the pair;
  // cancelled: stopped.
  static Result<std::shared_ptr<HandOffConnection>> Dial(const std::string& endpoint,
                                                         const WorkerInfo& own,
                                                         const DialOptions& options);
  ~HandOffConnection();  // not on a thread that calls listeners

  const WorkerInfo& peer() const { return peer_; }
  bool lost() const { return lost_.load(std::memory_order_acquire); }

  // run names the request and attempt. After Remove the listener is not called any more.
  void Add(const std::string& run, Listener* listener);
  void Remove(const std::string& run);

  // Addressed and queued; dropped when the session is lost.
  void Send(wire::Message message);

 private:
  HandOffConnection(std::string endpoint, uint64_t own_incarnation,
                    std::unique_ptr<Session> session);
  Status Greet(const WorkerInfo& own, const DialOptions& options);
  void Read();
  void OnMessage(const wire::Message& message);  // under the lock
  Listener* Find(uint64_t ticket) const;

  const std::string endpoint_;
  const uint64_t own_incarnation_;
  const std::unique_ptr<Session> session_;
  WorkerInfo peer_;  // fixed once dialled
  std::atomic<bool> lost_{false};
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::condition_variable greeted_;
  std::optional<std::string> refused_;                    // "": the pair fits
  std::unordered_map<std::string, Listener*> listeners_;  // by run
  std::unordered_map<uint64_t, std::string> runs_;        // by ticket
  std::thread reader_;
};

}  // namespace deepinfer
