// The HTTP front of the product: listens at once, serves when a model is attached.
// Thread rule: every method may be called from any thread; Stop not from a server callback.
// Owner: cli/.
#pragma once

#include <chrono>
#include <memory>

#include "base/load_progress.h"
#include "base/result.h"
#include "server/model_context.h"
#include "server/server_options.h"

namespace deepinfer {

class OverheadLog;

class Server {
 public:
  // Listens before it returns; until Attach every model route answers 503 "Loading model" with
  // the numbers of `progress`, which is borrowed and outlives the server.
  // Errors: invalid_request for contradictory options (no keys on an open address, test hooks
  // on an open address), unavailable when an address cannot be bound, or those of ApiKeys::Load.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, const LoadProgress* progress);
  ~Server();  // stops
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // 0 for one that does not listen.
  uint16_t port() const;

  // What every request goes through, wherever it comes from. Nothing may use it once Stop is
  // called.
  HttpHandler* handler();

  // The model is ready. Called at most once.
  void Attach(ModelContext model);

  // Loading failed: model routes answer 503 with a general message, the status goes to the log.
  void SetFailed(Status status);

  // Refuses new generations, lets running ones end until the deadline, then cancels them.
  void Drain(std::chrono::steady_clock::time_point deadline);

  // Cancels what runs, closes every connection, joins all threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  static std::unique_ptr<OverheadLog> MakeOverheadLog(Impl& impl, Gateway* gateway);
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
