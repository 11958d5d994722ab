// One client connection: reads requests, hands them over, writes answers. Only http_server.cc and
// http_connection.cc see this header, because it pulls the socket library in.
// Thread rule: everything runs on the connection's strand. Owner: its own coroutines.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <memory>

#include "server/http.h"
#include "server/http_stream.h"

namespace deepinfer {

// What connections share; outlives them all.
struct HttpShared {
  HttpServerOptions options;
  HttpHandler* handler = nullptr;
  std::atomic<bool> draining{false};
  std::atomic<int> active_exchanges{0};
  std::atomic<int> open_connections{0};
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = HttpStream::Socket;

  // tls: null for plain HTTP.
  HttpConnection(Socket socket, const TlsContext& tls, HttpShared* shared);
  ~HttpConnection();

  // Starts serving; the coroutines keep the connection alive until the socket is closed.
  void Start();

  // Writes one 503 answer and closes (api.md §13, connections).
  void StartRefusing();

  // Any thread.
  void Close();
  void CloseIfIdle();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::buffer_body>;
  using Clock = std::chrono::steady_clock;
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;

  // A client may send its next request early; more than this while one runs is not read.
  static constexpr size_t kMaxPipelinedBytes = 64 * 1024;

  // State of the answer being written.
  struct Answer {
    HttpOutcome outcome;
    unsigned version = 11;
    bool head_request = false;
    bool keep_alive = false;
    bool complete = false;
  };

  Awaitable<void> Run();
  Awaitable<void> Refuse();
  Awaitable<void> Watchdog();
  // The handshake of TLS; true at once without.
  Awaitable<bool> Open();
  // Until the client begins to send; false when it left.
  Awaitable<bool> WaitForRequest();
  // Tells the client that nothing was cut off, where TLS has a word for it.
  Awaitable<void> SayGoodbye();
  // One request and its answer; false ends the connection.
  Awaitable<bool> ServeOne();
  Awaitable<bool> ReadHeader(Parser& parser);
  // Status of the fault (0 = none) after the whole body is in *body.
  Awaitable<int> ReadBody(Parser& parser, std::string* body);
  Awaitable<bool> Refuse(const HttpRequest& request, HttpResponse response, Answer answer,
                         bool body_pending, bool admitted);
  Awaitable<void> RunExchange(HttpRequest request, Answer* answer);
  Awaitable<void> WriteAnswer(HttpExchange& exchange, Answer* answer);
  Awaitable<void> WatchClient();
  Awaitable<bool> WriteWhole(const HttpRequest& request, HttpResponse response, Answer* answer);
  Awaitable<bool> WriteStreamHead(const HttpRequest& request, const HttpResponse& head,
                                  Answer* answer);
  Awaitable<bool> WriteChunk(std::string_view bytes, Answer* answer);
  Awaitable<void> LingeringClose();

  HttpRequest MakeRequest(Parser& parser);
  void SetDeadline(std::chrono::milliseconds timeout);
  void ClearDeadline() { deadline_ = Clock::time_point::max(); }
  void CloseNow();

  HttpStream stream_;
  HttpShared* shared_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer watchdog_;
  Clock::time_point deadline_ = Clock::time_point::max();
  boost::asio::steady_timer wake_timer_;
  std::atomic<bool> wake_posted_{false};
  bool wake_pending_ = false;
  bool idle_ = true;
};

}  // namespace deepinfer
