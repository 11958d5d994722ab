#include "transfer/ucx_worker.h"

#include <dlfcn.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace deepinfer {

namespace {

constexpr char kLibrary[] = "libucp.so.0";
// How soon the loss of a peer is noticed that nothing is sent to.
constexpr char kKeepAlive[] = "1s";
// Timers of UCX need a look now and then.
constexpr std::chrono::milliseconds kLongestSleep{100};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  void* const symbol = dlsym(library, name);
  static_assert(sizeof symbol == sizeof *function);
  std::memcpy(function, &symbol, sizeof symbol);
  return symbol != nullptr;
}

}  // namespace

Result<UcxLibrary> UcxLibrary::Load() {
  // It stays for good: its threads and handlers do not end with the last user.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return Unsupported(std::string("UCX cannot be loaded: ") + dlerror());
  UcxLibrary lib;
  const bool found =
      Find(library, "ucp_init_version", &lib.init_version) &&
      Find(library, "ucp_cleanup", &lib.cleanup) &&
      Find(library, "ucp_config_read", &lib.config_read) &&
      Find(library, "ucp_config_modify", &lib.config_modify) &&
      Find(library, "ucp_config_release", &lib.config_release) &&
      Find(library, "ucp_worker_create", &lib.worker_create) &&
      Find(library, "ucp_worker_destroy", &lib.worker_destroy) &&
      Find(library, "ucp_worker_get_address", &lib.worker_get_address) &&
      Find(library, "ucp_worker_release_address", &lib.worker_release_address) &&
      Find(library, "ucp_worker_progress", &lib.worker_progress) &&
      Find(library, "ucp_worker_arm", &lib.worker_arm) &&
      Find(library, "ucp_worker_get_efd", &lib.worker_get_efd) &&
      Find(library, "ucp_worker_signal", &lib.worker_signal) &&
      Find(library, "ucp_worker_set_am_recv_handler", &lib.worker_set_am_recv_handler) &&
      Find(library, "ucp_ep_create", &lib.ep_create) &&
      Find(library, "ucp_ep_close_nbx", &lib.ep_close_nbx) &&
      Find(library, "ucp_ep_flush_nbx", &lib.ep_flush_nbx) &&
      Find(library, "ucp_am_send_nbx", &lib.am_send_nbx) &&
      Find(library, "ucp_request_check_status", &lib.request_check_status) &&
      Find(library, "ucp_request_free", &lib.request_free) &&
      Find(library, "ucs_status_string", &lib.status_string);
  if (!found) return Unsupported("this version of UCX lacks functions: 1.13 or later is needed");
  return lib;
}

Status UcxContext::Failed(const std::string& what, ucs_status_t status) const {
  return Unavailable("UCX: " + what + ": " + lib_.status_string(status));
}

Result<UcxContextPtr> UcxContext::Open(const UcxOptions& options) {
  DI_ASSIGN_OR_RETURN(const UcxLibrary lib, UcxLibrary::Load());
  ucp_config_t* config = nullptr;
  if (lib.config_read(nullptr, nullptr, &config) != UCS_OK) {
    return Unavailable("UCX: its settings cannot be read");
  }
  const std::unique_ptr<ucp_config_t, decltype(lib.config_release)> owner(config,
                                                                          lib.config_release);
  // Older versions know no such setting; then the loss shows at the next extent.
  (void)lib.config_modify(config, "KEEPALIVE_INTERVAL", kKeepAlive);
  if (!options.transports.empty() &&
      lib.config_modify(config, "TLS", options.transports.c_str()) != UCS_OK) {
    return InvalidRequest("UCX takes no transports '" + options.transports + "'");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  const ucs_status_t status =
      lib.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  if (status == UCS_ERR_NO_DEVICE) {
    return InvalidRequest("UCX has no transport '" + options.transports + "' on this machine");
  }
  if (status != UCS_OK) {
    return Unavailable(std::string("UCX does not begin: ") + lib.status_string(status));
  }
  return UcxContextPtr(new UcxContext(lib, context));
}

UcxContext::~UcxContext() { lib_.cleanup(context_); }

Result<std::unique_ptr<UcxWorker>> UcxWorker::Create(UcxContextPtr context) {
  const UcxLibrary& lib = context->lib();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  ucs_status_t status = lib.worker_create(context->get(), &params, &worker);
  if (status != UCS_OK) return context->Failed("no worker", status);
  int event_fd = -1;
  status = lib.worker_get_efd(worker, &event_fd);
  if (status != UCS_OK) {
    lib.worker_destroy(worker);
    return context->Failed("its transports cannot wait", status);
  }
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), worker, event_fd));
}

UcxWorker::~UcxWorker() {
  if (!stays_) lib().worker_destroy(worker_);
}

void UcxWorker::LeaveToTheEnd() {
  if (std::exchange(stays_, true)) return;
  new UcxContextPtr(context_);  // what it needs stays too
}

bool UcxWorker::Progress() { return lib().worker_progress(worker_) != 0; }

void UcxWorker::Sleep(SocketDeadline until) {
  // Something came since the last look.
  if (lib().worker_arm(worker_) != UCS_OK) return;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  pollfd poll_fd{event_fd_, POLLIN, 0};
  (void)poll(&poll_fd, 1,
             static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLongestSleep.count())));
}

void UcxWorker::Signal() { (void)lib().worker_signal(worker_); }

}  // namespace deepinfer
