// `deepinfer serve` inside a process of somebody else, without a socket: requests come as calls and
// answers as pieces. What is served and how is that of the HTTP API.
// Thread rule: any thread; a call belongs to one at a time. Owner: whoever embeds it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/serve_flags.h"
#include "cli/serving.h"
#include "server/http.h"
#include "server/server.h"

namespace deepinfer {

// One request and its answer. A call that is let go of before its end is cancelled.
class EmbeddedCall {
 public:
  enum class Step : unsigned char { kPiece, kEnd, kPending };

  EmbeddedCall(HttpHandler* handler, HttpRequest request);
  ~EmbeddedCall();
  EmbeddedCall(const EmbeddedCall&) = delete;
  EmbeddedCall& operator=(const EmbeddedCall&) = delete;

  // Waits for the next piece of the body: all of it, or one event of a stream. kPending: none came
  // in this time.
  Step Next(std::chrono::milliseconds timeout, std::string* piece);
  // Of the answer; 0 before its first piece.
  int status() const { return status_; }
  // Any thread: the next call of Next returns kEnd. Idempotent.
  void Cancel();

 private:
  void TakeOutput();
  void End(bool client_gone);

  HttpHandler* const handler_;
  std::shared_ptr<HttpExchange> exchange_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = true;       // under mutex_
  bool cancelled_ = false;  // under mutex_

  // The caller's thread only.
  std::deque<std::string> pieces_;
  int status_ = 0;
  uint64_t num_bytes_ = 0;
  bool finished_ = false;  // every piece is in pieces_
  bool ended_ = false;
};

class EmbeddedServer {
 public:
  // flags: of `deepinfer serve`. Returns when the model is loaded; its errors are those of the
  // command. Flags about listening have no effect.
  static Result<std::unique_ptr<EmbeddedServer>> Start(std::vector<std::string> flags);
  // Cancels what runs. Every call must be gone before.
  ~EmbeddedServer();
  EmbeddedServer(const EmbeddedServer&) = delete;
  EmbeddedServer& operator=(const EmbeddedServer&) = delete;

  std::shared_ptr<EmbeddedCall> Call(std::string method, std::string path, std::string body);
  const std::string& model_name() const { return flags_.server.served_model_names.front(); }

 private:
  EmbeddedServer() = default;

  ServeFlags flags_;
  LoadProgress progress_;
  Serving serving_;
  std::unique_ptr<Server> server_;
};

}  // namespace deepinfer
