#include "integration/server/test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace deepinfer::testing {
namespace {

void SetReceiveTimeout(int fd) {
  const timeval timeout{20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

}  // namespace

TestClient::TestClient(uint16_t port, int receive_buffer_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
  }
  const int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  SetReceiveTimeout(fd_);
}

TestClient::TestClient(const std::string& unix_path)
    : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, unix_path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
  }
  SetReceiveTimeout(fd_);
}

TestClient::~TestClient() { Close(); }

void TestClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void TestClient::Reset() {
  const linger hard{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  Close();
}

void TestClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void TestClient::SendRaw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the peer closed: the answer, if any, is still to be read
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void TestClient::Send(std::string_view method, std::string_view path, std::string_view body,
                      Headers headers) {
  std::string text(method);
  text.append(" ").append(path).append(" HTTP/1.1\r\nHost: localhost\r\n");
  for (const auto& [name, value] : headers) {
    text.append(name).append(": ").append(value).append("\r\n");
  }
  if (!body.empty() || method == "POST") {
    text.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n");
  }
  text.append("\r\n").append(body);
  SendRaw(text);
}

bool TestClient::Fill() {
  const std::string piece = ReadSome();
  pending_ += piece;
  return !piece.empty();
}

std::string TestClient::ReadSome() {
  if (!pending_.empty()) return std::exchange(pending_, {});
  std::string buffer(64 * 1024, '\0');
  const ssize_t size = recv(fd_, buffer.data(), buffer.size(), 0);
  buffer.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return buffer;
}

std::optional<std::string> TestClient::ReadLine() {
  size_t end;
  while ((end = pending_.find("\r\n")) == std::string::npos) {
    std::string kept = std::exchange(pending_, {});
    const bool more = Fill();
    pending_ = kept + pending_;
    if (!more) return std::nullopt;
  }
  std::string line = pending_.substr(0, end);
  pending_.erase(0, end + 2);
  return line;
}

std::optional<std::string> TestClient::ReadBytes(size_t size) {
  while (pending_.size() < size) {
    std::string kept = std::exchange(pending_, {});
    const bool more = Fill();
    pending_ = kept + pending_;
    if (!more) return std::nullopt;
  }
  std::string bytes = pending_.substr(0, size);
  pending_.erase(0, size);
  return bytes;
}

std::optional<ClientResponse> TestClient::ReadHead() {
  std::optional<std::string> line = ReadLine();
  if (!line || line->size() < 12) return std::nullopt;
  ClientResponse response;
  response.status = std::atoi(line->c_str() + 9);
  while ((line = ReadLine()) && !line->empty()) {
    const size_t colon = line->find(':');
    if (colon == std::string::npos) return std::nullopt;
    std::string name = line->substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    });
    response.headers[name] = line->substr(line->find_first_not_of(' ', colon + 1));
  }
  if (!line) return std::nullopt;
  return response;
}

std::optional<std::string> TestClient::ReadChunk() {
  const std::optional<std::string> line = ReadLine();
  if (!line) return std::nullopt;
  const size_t size = std::strtoul(line->c_str(), nullptr, 16);
  std::optional<std::string> chunk = ReadBytes(size);
  if (!chunk || !ReadBytes(2) || size == 0) return std::nullopt;
  return chunk;
}

std::optional<ClientResponse> TestClient::ReadResponse(bool head_request) {
  std::optional<ClientResponse> response = ReadHead();
  if (!response || head_request || response->status == 204) return response;
  if (response->headers.contains("transfer-encoding")) {
    while (std::optional<std::string> chunk = ReadChunk()) {
      response->body += *chunk;
      response->chunks.push_back(std::move(*chunk));
    }
    return response;
  }
  const auto length = response->headers.find("content-length");
  if (length == response->headers.end()) {
    for (std::string piece; !(piece = ReadSome()).empty();) response->body += piece;
    return response;
  }
  std::optional<std::string> body = ReadBytes(std::strtoul(length->second.c_str(), nullptr, 10));
  if (!body) return std::nullopt;
  response->body = std::move(*body);
  return response;
}

std::optional<ClientResponse> TestClient::Request(std::string_view method, std::string_view path,
                                                  std::string_view body, Headers headers) {
  Send(method, path, body, headers);
  return ReadResponse(method == "HEAD");
}

bool TestClient::WaitForClose(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  pending_.clear();
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{fd_, POLLIN, 0};
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0) return false;
    char buffer[4096];
    if (recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

}  // namespace deepinfer::testing
