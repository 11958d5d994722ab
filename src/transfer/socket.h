// TCP with deadlines, on the monotonic clock of the system.
// Thread rule: a socket is used by one thread at a time; ShutdownSocket may be called from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace deepinfer {

using SocketDeadline = std::chrono::steady_clock::time_point;

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Listens on host, a numeric address; port 0 is chosen by the system. unavailable when that fails.
Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port);
// The port a socket listens on.
uint16_t PortOf(const UniqueFd& socket);
// The next connection; unavailable once the listening socket was shut down.
Result<UniqueFd> AcceptTcp(const UniqueFd& listening);

// deadline: nobody answered in time; unavailable: refused or not to be found.
Result<UniqueFd> ConnectTcp(const std::string& host, uint16_t port, SocketDeadline deadline);

// All bytes or an error: unavailable when the peer is gone, deadline when it takes or sends nothing
// for too long.
Status SendAll(const UniqueFd& socket, std::span<const std::byte> bytes, SocketDeadline deadline);
Status ReceiveAll(const UniqueFd& socket, std::span<std::byte> bytes, SocketDeadline deadline);

// Ends calls that wait on the socket.
void ShutdownSocket(const UniqueFd& socket);

}  // namespace deepinfer
