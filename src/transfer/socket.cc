#include "transfer/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace deepinfer {

namespace {

constexpr int kBacklog = 64;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Unavailable("address " + host + ": " + gai_strerror(error));
  return Addresses(found, freeaddrinfo);
}

Status Failed(const std::string& what) { return Unavailable(what + ": " + std::strerror(errno)); }

// True once the socket can be read or written or has an error; false when the time is over.
bool WaitSocket(int fd, short events, SocketDeadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{fd, events, 0};
    const int timeout = static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 1'000'000));
    const int ready = poll(&poll_fd, 1, timeout);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// Moves bytes until all are through; `move` is send or recv on what is left.
template <typename Bytes, typename Move>
Status MoveAll(const UniqueFd& socket, Bytes bytes, short events, SocketDeadline deadline,
               const char* what, Move move) {
  while (!bytes.empty()) {
    const ssize_t moved = move(bytes);
    if (moved > 0) {
      bytes = bytes.subspan(static_cast<size_t>(moved));
      continue;
    }
    if (moved == 0) return Unavailable("the peer closed a data connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed(what);
    if (!WaitSocket(socket.get(), events, deadline)) {
      return DeadlineExceeded(std::string(what) + ": the peer stands still");
    }
  }
  return OkStatus();
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port) {
  DI_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, AI_PASSIVE | AI_NUMERICHOST));
  UniqueFd fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Failed("cannot listen on " + host);
  }
  return fd;
}

uint16_t PortOf(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Result<UniqueFd> AcceptTcp(const UniqueFd& listening) {
  while (true) {
    UniqueFd fd(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() >= 0) {
      SetNoDelay(fd.get());
      return fd;
    }
    if (errno != EINTR && errno != ECONNABORTED) return Failed("cannot accept");
  }
}

Result<UniqueFd> ConnectTcp(const std::string& host, uint16_t port, SocketDeadline deadline) {
  DI_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, 0));
  Status last = Unavailable("address " + host + " has no place to connect to");
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) return Failed("cannot make a socket");
    SetNoDelay(fd.get());
    if (connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
    if (errno == EINPROGRESS) {
      if (!WaitSocket(fd.get(), POLLOUT, deadline)) {
        return DeadlineExceeded("no connection to " + host);
      }
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return fd;
      errno = error;
    }
    last = Failed("no connection to " + host);
  }
  return last;
}

Status SendAll(const UniqueFd& socket, std::span<const std::byte> bytes, SocketDeadline deadline) {
  return MoveAll(socket, bytes, POLLOUT, deadline, "cannot send", [&](auto rest) {
    return send(socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  });
}

Status ReceiveAll(const UniqueFd& socket, std::span<std::byte> bytes, SocketDeadline deadline) {
  return MoveAll(socket, bytes, POLLIN, deadline, "cannot receive",
                 [&](auto rest) { return recv(socket.get(), rest.data(), rest.size(), 0); });
}

void ShutdownSocket(const UniqueFd& socket) { shutdown(socket.get(), SHUT_RDWR); }

}  // namespace deepinfer
