#include "transfer/ucx.h"

#include <atomic>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "transfer/ucx_worker.h"

namespace deepinfer {

namespace {

// For a peer to hear that a path ends; then it ends without it.
constexpr std::chrono::milliseconds kFarewell{200};
// For requests that were given up to let go of their bytes. UCX does that at once.
constexpr std::chrono::seconds kLetGoLimit{2};

SocketDeadline After(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

// UCX trusts addresses: whatever is not one of a worker's, whole, must not get there.
constexpr std::string_view kAddressMark = "ucx1";

std::string WrapAddress(std::string_view address) {
  std::string wrapped(kAddressMark);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(address)));
  for (int shift = 0; shift < 32; shift += 8) wrapped.push_back(static_cast<char>(crc >> shift));
  return wrapped.append(address);
}

Result<std::string_view> UnwrapAddress(std::string_view wrapped) {
  constexpr size_t kHead = kAddressMark.size() + sizeof(uint32_t);
  if (wrapped.size() <= kHead || WrapAddress(wrapped.substr(kHead)) != wrapped) {
    return Unavailable("not the address of a UCX worker");
  }
  return wrapped.substr(kHead);
}

class UcxPath final : public ExtentPath {
 public:
  UcxPath(std::unique_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}
  ~UcxPath() override {
    if (endpoint_ != nullptr) Close(failed_.ok() ? kFarewell : std::chrono::milliseconds(0));
  }

  Status Connect(std::string_view wrapped, SocketDeadline deadline) {
    DI_ASSIGN_OR_RETURN(const std::string_view address, UnwrapAddress(wrapped));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_handler = {&UcxPath::OnError, this};
    std::atomic<bool>& shows_loss = worker_->context().shows_loss();
    ucs_status_t status = UCS_ERR_UNREACHABLE;
    if (shows_loss.load(std::memory_order_relaxed)) {
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      status = lib().ep_create(worker_->get(), &params, &endpoint_);
    }
    if (status == UCS_ERR_UNREACHABLE) {
      // Transports that do not show a loss, as shared memory of UCX 1.13. Deadlines do.
      shows_loss_ = false;
      params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
      status = lib().ep_create(worker_->get(), &params, &endpoint_);
      if (status == UCS_OK) shows_loss.store(false, std::memory_order_relaxed);
    }
    if (status != UCS_OK) {
      endpoint_ = nullptr;
      return worker_->context().Failed("no way to the other worker", status);
    }
    return Flush(deadline);
  }

  Status Send(const Extent& extent, std::span<const std::byte> bytes,
              SocketDeadline deadline) override {
    if (endpoint_ == nullptr) return failed_;
    const FrameHeader header = EncodeFrame(extent);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    // The bytes are copied on the way: the receiver's memory is never written by this side.
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    DI_RETURN_IF_ERROR(Finish(lib().am_send_nbx(endpoint_, UcxWorker::kExtentMessage, header.data(),
                                                header.size(), bytes.data(), bytes.size(), &param),
                              deadline));
    // Else the rest would wait here for the next one: nobody looks after the worker until then.
    return Flush(deadline);
  }

  bool needs_message() const override { return false; }

  void Interrupt() override {
    interrupted_.store(true, std::memory_order_release);
    worker_->Signal();
  }

 private:
  static void OnError(void* self, ucp_ep_h, ucs_status_t status) {
    auto* const path = static_cast<UcxPath*>(self);
    if (path->failed_.ok()) {
      path->failed_ = path->worker_->context().Failed("the other worker is gone", status);
    }
  }

  const UcxLibrary& lib() const { return worker_->lib(); }

  Status Flush(SocketDeadline deadline) {
    const ucp_request_param_t param{};
    return Finish(lib().ep_flush_nbx(endpoint_, &param), deadline);
  }

  // Waits for the end of a request; whatever goes wrong ends the path.
  Status Finish(ucs_status_ptr_t request, SocketDeadline deadline) {
    Status status;
    if (UCS_PTR_IS_ERR(request)) {
      status = worker_->context().Failed("cannot send", UCS_PTR_STATUS(request));
    } else if (request != nullptr) {
      status = Wait(request, deadline);
      if (status.ok()) {
        lib().request_free(request);
        return failed_;
      }
    } else if (failed_.ok()) {
      return OkStatus();
    }
    if (failed_.ok()) failed_ = status;
    // Then the request lets go of the bytes.
    Close(std::chrono::milliseconds(0));
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
      if (shows_loss_) (void)Await(request, After(kLetGoLimit));
      lib().request_free(request);
    }
    return failed_;
  }

  // INPROGRESS when the time is over.
  ucs_status_t Await(ucs_status_ptr_t request, SocketDeadline deadline) {
    while (true) {
      const ucs_status_t status = lib().request_check_status(request);
      if (status != UCS_INPROGRESS) return status;
      if (worker_->Progress()) continue;
      if (std::chrono::steady_clock::now() >= deadline) return UCS_INPROGRESS;
      worker_->Sleep(deadline);
    }
  }

  Status Wait(ucs_status_ptr_t request, SocketDeadline deadline) {
    while (!interrupted_.load(std::memory_order_acquire)) {
      const ucs_status_t status = lib().request_check_status(request);
      if (status == UCS_OK) return OkStatus();
      if (status != UCS_INPROGRESS) {
        return worker_->context().Failed("the other worker is gone", status);
      }
      if (worker_->Progress()) continue;
      if (std::chrono::steady_clock::now() >= deadline) {
        return DeadlineExceeded("UCX: the other worker stands still");
      }
      worker_->Sleep(deadline);
    }
    return Unavailable("UCX: the transfer was interrupted");
  }

  // Ends the endpoint; without time for that at once, and everything it still sends.
  void Close(std::chrono::milliseconds farewell) {
    const ucp_ep_h endpoint = std::exchange(endpoint_, nullptr);
    // Such an endpoint cannot be cut. Only this thread moves its bytes, and does so no more.
    if (farewell.count() == 0 && !shows_loss_) return worker_->LeaveToTheEnd();
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = farewell.count() > 0 ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t const request = lib().ep_close_nbx(endpoint, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
    (void)Await(request, After(farewell.count() > 0 ? farewell : kLetGoLimit));
    lib().request_free(request);
  }

  const std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;  // null once it has failed
  bool shows_loss_ = true;
  Status failed_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace

class UcxServer::Impl {
 public:
  Impl(std::unique_ptr<UcxWorker> worker, LandingTable* landings, DataServer::OnExtent on_extent)
      : worker_(std::move(worker)), landings_(landings), on_extent_(std::move(on_extent)) {}
  ~Impl() {
    stop_.store(true, std::memory_order_release);
    worker_->Signal();
    if (thread_.joinable()) thread_.join();
    worker_->LeaveToTheEnd();
  }

  Status Start() {
    const UcxLibrary& lib = worker_->lib();
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = UcxWorker::kExtentMessage;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &Impl::OnMessage;
    handler.arg = this;
    ucs_status_t status = lib.worker_set_am_recv_handler(worker_->get(), &handler);
    if (status != UCS_OK) return worker_->context().Failed("no messages", status);
    ucp_address_t* address = nullptr;
    size_t size = 0;
    status = lib.worker_get_address(worker_->get(), &address, &size);
    if (status != UCS_OK) return worker_->context().Failed("no address", status);
    address_ = WrapAddress({reinterpret_cast<const char*>(address), size});
    lib.worker_release_address(worker_->get(), address);
    thread_ = std::thread([this] { Serve(); });
    return OkStatus();
  }

  const std::string& address() const { return address_; }

 private:
  void Serve() {
    while (!stop_.load(std::memory_order_acquire)) {
      if (!worker_->Progress()) worker_->Sleep(SocketDeadline::max());
    }
  }

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t size_bytes, const ucp_am_recv_param_t* param) {
    // With this attribute the bytes are still to be fetched: none of our senders does so.
    const bool is_here = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    if (is_here && header_bytes == kFrameBytes) {
      static_cast<Impl*>(self)->Take(std::span<const std::byte, kFrameBytes>(
                                         static_cast<const std::byte*>(header), kFrameBytes),
                                     {static_cast<const std::byte*>(data), size_bytes});
    }
    return UCS_OK;
  }

  void Take(std::span<const std::byte, kFrameBytes> header, std::span<const std::byte> bytes) {
    const Result<Extent> extent = DecodeFrame(header);
    if (!extent.ok()) return;
    const auto copy = [&](std::span<std::byte> to) -> Status {
      if (to.size() != bytes.size()) return InvalidRequest("an extent of another size");
      std::memcpy(to.data(), bytes.data(), bytes.size());
      return OkStatus();
    };
    on_extent_(*extent, landings_->OnStream(*extent, copy, [] {}));
  }

  const std::unique_ptr<UcxWorker> worker_;
  LandingTable* const landings_;
  const DataServer::OnExtent on_extent_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // uses the worker from Start on
};

bool HasUcx() { return true; }

Result<UcxContextPtr> OpenUcx(const UcxOptions& options) { return UcxContext::Open(options); }

UcxServer::UcxServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxServer::~UcxServer() = default;

Result<std::unique_ptr<UcxServer>> UcxServer::Start(UcxContextPtr context, LandingTable* landings,
                                                    DataServer::OnExtent on_extent) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(std::move(context)));
  auto impl = std::make_unique<Impl>(std::move(worker), landings, std::move(on_extent));
  DI_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<UcxServer>(new UcxServer(std::move(impl)));
}

const std::string& UcxServer::address() const { return impl_->address(); }

Result<std::unique_ptr<ExtentPath>> OpenUcxPath(UcxContextPtr context, const std::string& address,
                                                SocketDeadline deadline) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create(std::move(context)));
  auto path = std::make_unique<UcxPath>(std::move(worker));
  DI_RETURN_IF_ERROR(path->Connect(address, deadline));
  return std::unique_ptr<ExtentPath>(std::move(path));
}

}  // namespace deepinfer
