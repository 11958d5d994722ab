#include "transfer/extent_path.h"

#include <cstring>
#include <utility>

#include "transfer/shared_window.h"

namespace deepinfer {

namespace {

class SharedPath final : public ExtentPath {
 public:
  explicit SharedPath(SharedWindow window) : window_(std::move(window)) {}

  Status Send(const Extent& extent, std::span<const std::byte> bytes, SocketDeadline) override {
    const std::span<std::byte> window = window_.bytes();
    const size_t at = size_t{extent.slot} * size_t{kExtentBytes};
    if (at + bytes.size() > window.size()) return Internal("an extent lies outside of its window");
    std::memcpy(window.data() + at, bytes.data(), bytes.size());
    return OkStatus();
  }
  bool needs_message() const override { return true; }
  void Interrupt() override {}

 private:
  const SharedWindow window_;
};

class StreamPath final : public ExtentPath {
 public:
  explicit StreamPath(UniqueFd socket) : socket_(std::move(socket)) {}

  Status Send(const Extent& extent, std::span<const std::byte> bytes,
              SocketDeadline deadline) override {
    DI_RETURN_IF_ERROR(SendAll(socket_, EncodeFrame(extent), deadline));
    return SendAll(socket_, bytes, deadline);
  }
  bool needs_message() const override { return false; }
  void Interrupt() override { ShutdownSocket(socket_); }

 private:
  const UniqueFd socket_;
};

}  // namespace

Result<std::unique_ptr<ExtentPath>> OpenSharedPath(const std::string& address,
                                                   int64_t window_bytes) {
  DI_ASSIGN_OR_RETURN(SharedWindow window, SharedWindow::Open(address, window_bytes));
  return std::unique_ptr<ExtentPath>(new SharedPath(std::move(window)));
}

Result<std::unique_ptr<ExtentPath>> OpenStreamPath(const std::string& host, uint16_t port,
                                                   SocketDeadline deadline) {
  DI_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTcp(host, port, deadline));
  return std::unique_ptr<ExtentPath>(new StreamPath(std::move(socket)));
}

}  // namespace deepinfer
