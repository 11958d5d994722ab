// The library of UCX, loaded at run time, and a worker of it. Only the files of UCX include this.
// Thread rule: a context may be used by any thread, a worker by one but for Signal.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "transfer/socket.h"
#include "transfer/ucx.h"

namespace deepinfer {

// Functions of libucp and libucs that we call.
struct UcxLibrary {
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_signal) worker_signal = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;

  static Result<UcxLibrary> Load();
};

class UcxContext {
 public:
  static Result<UcxContextPtr> Open(const UcxOptions& options);
  ~UcxContext();

  const UcxLibrary& lib() const { return lib_; }
  ucp_context_h get() const { return context_; }
  // Whether its transports show the loss of a peer, as far as was seen.
  std::atomic<bool>& shows_loss() { return shows_loss_; }
  // unavailable, with what UCX says.
  Status Failed(const std::string& what, ucs_status_t status) const;

 private:
  UcxContext(const UcxLibrary& lib, ucp_context_h context) : lib_(lib), context_(context) {}

  const UcxLibrary lib_;
  const ucp_context_h context_;
  std::atomic<bool> shows_loss_{true};
};

class UcxWorker {
 public:
  // Active messages with this number carry extents.
  static constexpr unsigned kExtentMessage = 1;

  static Result<std::unique_ptr<UcxWorker>> Create(UcxContextPtr context);
  ~UcxWorker();

  const UcxLibrary& lib() const { return context_->lib(); }
  UcxContext& context() const { return *context_; }
  ucp_worker_h get() const { return worker_; }

  // Does what can be done now; false: that was nothing.
  bool Progress();
  // Waits until there is something to do, a signal came, or so long.
  void Sleep(SocketDeadline until);
  // Ends a Sleep, or the next one. Any thread.
  void Signal();
  // It stays, unused, to the end of the process. UCX 1.13 aborts when a worker ends that still
  // has a greeting to send, as one has whose peer is gone.
  void LeaveToTheEnd();

 private:
  UcxWorker(UcxContextPtr context, ucp_worker_h worker, int event_fd)
      : context_(std::move(context)), worker_(worker), event_fd_(event_fd) {}

  const UcxContextPtr context_;
  const ucp_worker_h worker_;
  const int event_fd_;  // the worker's own
  bool stays_ = false;
};

}  // namespace deepinfer
