#include "transfer/data_server.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace deepinfer {

namespace {

// Beyond, connections are closed at once: one per sender that is at work is enough.
constexpr size_t kMostConnections = 256;
// A sender that says nothing for so long has nothing to say.
constexpr std::chrono::seconds kIdleLimit{30};
// A sender writes its first frame at once; whoever says nothing must not keep others out.
constexpr std::chrono::seconds kFirstFrameLimit{10};
// When the system has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{50};

}  // namespace

Result<std::unique_ptr<DataServer>> DataServer::Listen(const std::string& host,
                                                       LandingTable* landings, OnExtent on_extent) {
  DI_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(host, 0));
  return std::unique_ptr<DataServer>(
      new DataServer(std::move(socket), landings, std::move(on_extent)));
}

DataServer::DataServer(UniqueFd socket, LandingTable* landings, OnExtent on_extent)
    : socket_(std::move(socket)),
      port_(PortOf(socket_)),
      landings_(landings),
      on_extent_(std::move(on_extent)),
      acceptor_([this] { Accept(); }) {}

DataServer::~DataServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const Connection& c : connections_) ShutdownSocket(c.socket);
  }
  ShutdownSocket(socket_);
  acceptor_.join();
  for (Connection& c : connections_) c.thread.join();
}

void DataServer::Accept() {
  while (true) {
    Result<UniqueFd> socket = AcceptTcp(socket_);
    Reap();
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (!socket.ok()) {
      lock.unlock();
      std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    if (connections_.size() >= kMostConnections) continue;
    Connection& c = connections_.emplace_back();
    c.socket = *std::move(socket);
    try {
      c.thread = std::thread([this, &c] { Serve(&c); });
    } catch (const std::system_error& error) {
      Log(LogLevel::kWarning, "transfer.no_thread", {{"error", error.what()}});
      connections_.pop_back();
    }
  }
}

void DataServer::Reap() {
  std::list<Connection> over;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->over) over.splice(over.end(), connections_, it);
      it = next;
    }
  }
  for (Connection& c : over) c.thread.join();
}

void DataServer::Serve(Connection* connection) {
  const UniqueFd& socket = connection->socket;
  const auto deadline = [] { return std::chrono::steady_clock::now() + kIdleLimit; };
  FrameHeader header;
  auto header_deadline = std::chrono::steady_clock::now() + kFirstFrameLimit;
  for (; ReceiveAll(socket, header, header_deadline).ok(); header_deadline = deadline()) {
    const Result<Extent> extent = DecodeFrame(header);
    if (!extent.ok()) break;
    const ExtentOutcome outcome = landings_->OnStream(
        *extent, [&](std::span<std::byte> to) { return ReceiveAll(socket, to, deadline()); },
        [&] { ShutdownSocket(socket); });
    on_extent_(*extent, outcome);
    if (outcome == ExtentOutcome::kRefused) break;
  }
  ShutdownSocket(socket);
  const std::lock_guard lock(mutex_);
  connection->over = true;
}

}  // namespace deepinfer
