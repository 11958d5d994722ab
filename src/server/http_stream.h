// A client's socket, plain or behind TLS: one asynchronous stream for the code that reads and
// writes HTTP. Only http_*.cc see this header, because it pulls the socket library in.
// Thread rule: one strand; one read and one write may be pending. Owner: server/http_connection.h.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cstddef>
#include <optional>
#include <utility>

#include "server/tls_context.h"

namespace deepinfer {

class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Tls = boost::asio::ssl::stream<Socket&>;
  using executor_type = Socket::executor_type;

  // tls: null for a plain socket.
  HttpStream(Socket socket, const TlsContext& tls) : socket_(std::move(socket)) {
    if (tls) tls_.emplace(socket_, *tls);
  }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  // Null for a plain socket.
  Tls* tls() { return tls_ ? &*tls_ : nullptr; }

  bool is_open() const { return socket_.is_open(); }
  void Close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& to) {
          if (tls_) {
            tls_->async_read_some(to, std::move(handler));
          } else {
            socket_.async_read_some(to, std::move(handler));
          }
        },
        token, buffers);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code, size_t)>(
        [this](auto handler, const Buffers& from) {
          if (tls_) {
            tls_->async_write_some(from, std::move(handler));
          } else {
            socket_.async_write_some(from, std::move(handler));
          }
        },
        token, buffers);
  }

 private:
  Socket socket_;
  std::optional<Tls> tls_;
};

}  // namespace deepinfer
