// One ordered stream of messages between two processes, in both directions. gRPC stays behind it.
// Thread rule: Receive by one thread, everything else from any. Owner: who dialled, or the
// SessionServer for the time of its callback.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace deepinfer {

namespace wire {
class Message;
}

// Proof of membership, PEM texts: both sides show a certificate for the name `deepinfer` that the
// authority of the cluster signed.
struct SessionSecurity {
  std::string certificate;
  std::string key;
  std::string authority;
};
// Null: in the clear, with anybody.
using SecurityPtr = std::shared_ptr<const SessionSecurity>;

class Session {
 public:
  virtual ~Session() = default;

  // Waits for the next message; false once the session is closed. A peer that falls silent is
  // noticed by the keep-alive of the connection or by whoever expects reports and closes.
  virtual bool Receive(wire::Message* message) = 0;

  // Queues the message and returns; it is dropped when the session is closed. A peer that takes
  // nothing while the queue fills up loses the session.
  virtual void Send(wire::Message message) = 0;

  virtual void Close() = 0;
};

// Connects to "unix:/path" or "host:port". unavailable when that takes longer than the limit.
Result<std::unique_ptr<Session>> DialSession(const std::string& endpoint,
                                             std::chrono::milliseconds limit,
                                             const SecurityPtr& security = nullptr);

class SessionServer {
 public:
  // Calls `serve` for every session on a thread of its own; the session ends when it returns.
  // "host:0" takes a free port. unavailable when the address cannot be had.
  static Result<std::unique_ptr<SessionServer>> Listen(const std::string& endpoint,
                                                       std::function<void(Session*)> serve,
                                                       const SecurityPtr& security = nullptr);
  virtual ~SessionServer() = default;  // as Shutdown

  // Where to dial, with the port that was taken.
  virtual const std::string& endpoint() const = 0;

  // Closes every session and waits until their callbacks have returned. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace deepinfer
