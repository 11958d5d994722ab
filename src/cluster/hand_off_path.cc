#include "cluster/hand_off_path.h"

#include <charconv>
#include <chrono>
#include <utility>

#include <cluster.pb.h>
#include "base/log.h"
#include "transfer/ucx.h"

namespace deepinfer {

namespace {

constexpr std::chrono::milliseconds kDialLimit{1000};

// Where data connections of a worker go: its port on the host of its endpoint.
struct Address {
  std::string host;
  uint16_t port = 0;
};

Result<Address> DataAddress(const std::string& endpoint, const std::string& data_endpoint) {
  Address address{"127.0.0.1", 0};
  if (!endpoint.starts_with("unix:")) address.host = endpoint.substr(0, endpoint.rfind(':'));
  if (address.host.starts_with('[')) address.host = address.host.substr(1, address.host.size() - 2);
  const char* const end = data_endpoint.data() + data_endpoint.size();
  if (!data_endpoint.starts_with(':') ||
      std::from_chars(data_endpoint.data() + 1, end, address.port).ptr != end) {
    return Unavailable("the worker takes no data connections");
  }
  return address;
}

// Bytes travel with the messages that announce them.
class InBandPath final : public ExtentPath {
 public:
  explicit InBandPath(HandOffConnection* connection) : connection_(connection) {}
  Status Send(const Extent& extent, std::span<const std::byte> bytes, SocketDeadline) override {
    wire::Message message = ExtentMessage(extent);
    message.mutable_extent()->set_data(bytes.data(), bytes.size());
    connection_->Send(std::move(message));
    return OkStatus();
  }
  bool needs_message() const override { return false; }
  void Interrupt() override {}

 private:
  HandOffConnection* const connection_;
};

}  // namespace

wire::Message ExtentMessage(const Extent& extent) {
  wire::Message message;
  wire::Extent* out = message.mutable_extent();
  out->set_ticket(extent.ticket);
  out->set_offset(extent.offset);
  out->set_size_bytes(extent.size_bytes);
  out->set_crc32c(extent.crc32c);
  out->set_slot(extent.slot);
  return message;
}

Result<std::unique_ptr<ExtentPath>> OpenHandOffPath(const wire::Ticket& ticket,
                                                    const HandOffSenderOptions& options,
                                                    const std::string& endpoint,
                                                    HandOffConnection* connection) {
  const HandOffTransport transport = options.transport;
  const auto deadline = [] { return std::chrono::steady_clock::now() + kDialLimit; };
  if (!ticket.ucx_address().empty() && options.ucx != nullptr) {
    auto path = OpenUcxPath(options.ucx, ticket.ucx_address(), deadline());
    if (path.ok()) return path;
    // No fabric that both are on: the network reaches it.
    Log(LogLevel::kWarning, "hand_off.no_ucx", {{"endpoint", endpoint}, {"status", path.status()}});
  }
  if (!ticket.shared_memory().empty() && transport != HandOffTransport::kTcp) {
    auto shared = OpenSharedPath(ticket.shared_memory(), ticket.credit_bytes());
    if (shared.ok() || transport == HandOffTransport::kSharedMemory) return shared;
    // Another container on the same kernel, or another user: the network reaches it.
  }
  if (ticket.data_endpoint().empty() && options.security != nullptr) {
    return std::unique_ptr<ExtentPath>(new InBandPath(connection));
  }
  DI_ASSIGN_OR_RETURN(const Address address, DataAddress(endpoint, ticket.data_endpoint()));
  return OpenStreamPath(address.host, address.port, deadline());
}

}  // namespace deepinfer
