#include "server/http_connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <optional>
#include <utility>

#include "base/log.h"
#include "server/request_id.h"

namespace deepinfer {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using asio::experimental::awaitable_operators::operator||;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr size_t kBodyReadBytes = 64 * 1024;
// Small: every idle connection with TLS holds such a buffer.
constexpr size_t kFirstReadBytes = 4 * 1024;

// Withdraws the exchange from its makers however the coroutine ends, destruction included.
class ExchangeGuard {
 public:
  ExchangeGuard(HttpShared* shared, HttpExchange* exchange) : shared_(shared), exchange_(exchange) {
    shared_->active_exchanges.fetch_add(1, std::memory_order_acq_rel);
  }
  ExchangeGuard(const ExchangeGuard&) = delete;
  ExchangeGuard& operator=(const ExchangeGuard&) = delete;
  ~ExchangeGuard() {
    if (delivered_) {
      exchange_->MarkDelivered();
    } else {
      exchange_->MarkDisconnected();
    }
    shared_->active_exchanges.fetch_sub(1, std::memory_order_acq_rel);
  }
  void SetDelivered() { delivered_ = true; }

 private:
  HttpShared* shared_;
  HttpExchange* exchange_;
  bool delivered_ = false;
};

// "http://host/path?query" and "/path?query" to "/path".
std::string_view PathOf(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme != std::string_view::npos && target.front() != '/') {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  return target.substr(0, target.find_first_of("?#"));
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, const TlsContext& tls, HttpShared* shared)
    : stream_(std::move(socket), tls),
      shared_(shared),
      buffer_(shared->options.max_header_bytes + kMaxPipelinedBytes + kBodyReadBytes),
      watchdog_(stream_.get_executor()),
      wake_timer_(stream_.get_executor()) {
  shared_->open_connections.fetch_add(1, std::memory_order_acq_rel);
}

HttpConnection::~HttpConnection() {
  shared_->open_connections.fetch_sub(1, std::memory_order_acq_rel);
}

void HttpConnection::Start() {
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);  // fails on a Unix socket
  const auto executor = stream_.get_executor();
  asio::co_spawn(
      executor, [self = shared_from_this()] { return self->Watchdog(); }, asio::detached);
  asio::co_spawn(
      executor, [self = shared_from_this()] { return self->Run(); }, asio::detached);
}

void HttpConnection::StartRefusing() {
  const auto executor = stream_.get_executor();
  asio::co_spawn(
      executor, [self = shared_from_this()] { return self->Watchdog(); }, asio::detached);
  asio::co_spawn(
      executor, [self = shared_from_this()] { return self->Refuse(); }, asio::detached);
}

void HttpConnection::Close() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->CloseNow(); });
}

void HttpConnection::CloseIfIdle() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (self->idle_) self->CloseNow();
  });
}

void HttpConnection::CloseNow() {
  stream_.Close();
  watchdog_.cancel();
  wake_timer_.cancel();
}

void HttpConnection::SetDeadline(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const bool earlier = deadline < deadline_;
  deadline_ = deadline;
  if (earlier) watchdog_.cancel();
}

asio::awaitable<void> HttpConnection::Watchdog() {
  while (stream_.is_open()) {
    watchdog_.expires_at(deadline_);
    co_await watchdog_.async_wait(kAwait);
    if (Clock::now() >= deadline_) CloseNow();
  }
}

asio::awaitable<void> HttpConnection::Run() {
  // A broken connection surfaces as an error code or, when an operation was cancelled, as an
  // exception; both end it here.
  try {
    if (co_await Open()) {
      while (co_await ServeOne()) {
      }
      co_await SayGoodbye();
    }
  } catch (const std::exception&) {
  }
  CloseNow();
}

asio::awaitable<void> HttpConnection::Refuse() {
  try {
    if (!co_await Open()) co_return CloseNow();
    HttpRequest request;
    request.request_id = MakeRandomId("req_");
    Answer answer;
    HttpResponse response =
        shared_->handler->Error(request, 503, "server_overloaded", "Too many connections");
    if (co_await WriteWhole(request, std::move(response), &answer)) co_await LingeringClose();
  } catch (const std::exception&) {
  }
  CloseNow();
}

asio::awaitable<bool> HttpConnection::Open() {
  HttpStream::Tls* const tls = stream_.tls();
  if (tls == nullptr) co_return true;
  idle_ = false;
  SetDeadline(shared_->options.header_timeout);
  const auto [error] = co_await tls->async_handshake(HttpStream::Tls::server, kAwait);
  ClearDeadline();
  if (error) Log(LogLevel::kDebug, "http.handshake_failed", {{"error", error.message()}});
  co_return !error;
}

asio::awaitable<bool> HttpConnection::WaitForRequest() {
  if (stream_.tls() == nullptr) {
    const auto [error] = co_await stream_.socket().async_wait(Socket::wait_read, kAwait);
    co_return !error;
  }
  // What came with the bytes before may be decrypted already, so that the socket stays silent.
  const auto [error, size] =
      co_await stream_.async_read_some(buffer_.prepare(kFirstReadBytes), kAwait);
  if (!error) buffer_.commit(size);
  co_return !error;
}

asio::awaitable<bool> HttpConnection::ReadHeader(Parser& parser) {
  if (buffer_.size() == 0) {
    idle_ = true;
    SetDeadline(shared_->options.idle_timeout);
    if (!co_await WaitForRequest()) co_return false;
  }
  idle_ = false;
  SetDeadline(shared_->options.header_timeout);
  const auto [error, size] = co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  ClearDeadline();
  if (!error) co_return true;
  int status = 0;
  std::string_view code = "invalid_request";
  std::string_view message = "The request is not valid HTTP/1.1";
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    status = 413;
    code = "request_too_large";
    message = "The request headers are too large";
  } else if (error != http::error::end_of_stream && error != http::error::partial_message &&
             error.category() == http::make_error_code(http::error::end_of_stream).category()) {
    status = 400;
  }
  if (status != 0) {
    HttpRequest request;
    request.request_id = MakeRandomId("req_");
    Answer answer;
    HttpResponse response = shared_->handler->Error(request, status, code, message);
    if (co_await WriteWhole(request, std::move(response), &answer)) co_await LingeringClose();
  }
  co_return false;
}

HttpRequest HttpConnection::MakeRequest(Parser& parser) {
  const auto& message = parser.get();
  HttpRequest request;
  request.received = Clock::now();
  const auto method = message.method_string();
  request.method.assign(method.data(), method.size());
  const auto target = message.target();
  request.path = std::string(PathOf({target.data(), target.size()}));
  for (const auto& field : message) {
    const auto name = field.name_string();
    const auto value = field.value();
    request.headers.push_back(
        {std::string(name.data(), name.size()), std::string(value.data(), value.size())});
  }
  const std::string_view id = request.Header("X-Request-Id");
  request.request_id = IsValidRequestId(id) ? std::string(id) : MakeRandomId("req_");
  return request;
}

asio::awaitable<bool> HttpConnection::ServeOne() {
  Parser parser;
  parser.header_limit(shared_->options.max_header_bytes);
  // The limit is ours, so that it is answered after the route and the key are checked.
  parser.body_limit(boost::none);
  if (!co_await ReadHeader(parser)) co_return false;

  HttpRequest request = MakeRequest(parser);
  Answer answer;
  answer.version = parser.get().version();
  answer.head_request = request.method == "HEAD";
  answer.keep_alive = parser.keep_alive() && !shared_->draining.load(std::memory_order_acquire);
  const auto content_length = parser.content_length();
  const bool body_pending = parser.chunked() || content_length.value_or(0) > 0;

  const auto error = [&](int status, std::string_view code, std::string_view message) {
    return shared_->handler->Error(request, status, code, message);
  };
  if (request.headers.size() > shared_->options.max_header_fields) {
    co_return co_await Refuse(request, error(400, "invalid_request", "Too many header fields"),
                              answer, body_pending, false);
  }
  std::optional<HttpResponse> refusal = shared_->handler->Admit(request);
  if (!refusal && content_length.value_or(0) > shared_->options.max_body_bytes) {
    refusal = error(413, "request_too_large", "The request body is too large");
  }
  const std::string_view expect = request.Header("Expect");
  const bool expects_continue =
      boost::beast::iequals({expect.data(), expect.size()}, "100-continue");
  if (!refusal && !expect.empty() && !expects_continue) {
    refusal = error(417, "invalid_request", "Unknown Expect header");
  }
  if (refusal) {
    co_return co_await Refuse(request, std::move(*refusal), answer, body_pending, true);
  }
  if (body_pending) {
    if (expects_continue && buffer_.size() == 0) {
      SetDeadline(shared_->options.write_progress_timeout);
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      const auto [write_error, size] = co_await asio::async_write(
          stream_, asio::buffer(kContinue.data(), kContinue.size()), kAwait);
      if (write_error) co_return false;
    }
    const int status = co_await ReadBody(parser, &request.body);
    if (status != 0) {
      HttpResponse response =
          status == 413 ? error(413, "request_too_large", "The request body is too large")
                        : error(400, "invalid_request", "The request body is not valid HTTP/1.1");
      co_return co_await Refuse(request, std::move(response), answer, true, true);
    }
  }
  co_await RunExchange(std::move(request), &answer);
  co_return answer.complete&& answer.keep_alive;
}

asio::awaitable<int> HttpConnection::ReadBody(Parser& parser, std::string* body) {
  std::string chunk(kBodyReadBytes, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    SetDeadline(shared_->options.body_progress_timeout);
    const auto [read_error, size] =
        co_await http::async_read_some(stream_, buffer_, parser, kAwait);
    const size_t filled = chunk.size() - parser.get().body().size;
    if (body->size() + filled > shared_->options.max_body_bytes) co_return 413;
    body->append(chunk, 0, filled);
    if (read_error && read_error != http::error::need_buffer) {
      ClearDeadline();
      co_return 400;
    }
  }
  ClearDeadline();
  co_return 0;
}

asio::awaitable<bool> HttpConnection::Refuse(const HttpRequest& request, HttpResponse response,
                                             Answer answer, bool body_pending, bool admitted) {
  if (body_pending) answer.keep_alive = false;
  const bool written = co_await WriteWhole(request, std::move(response), &answer);
  answer.outcome.duration = Clock::now() - request.received;
  answer.outcome.client_gone = !written;
  if (admitted) shared_->handler->Done(request, answer.outcome);
  if (written && body_pending) co_await LingeringClose();
  co_return written&& answer.keep_alive;
}

asio::awaitable<void> HttpConnection::RunExchange(HttpRequest request, Answer* answer) {
  auto exchange = std::make_shared<HttpExchange>(std::move(request));
  ExchangeGuard guard(shared_, exchange.get());
  wake_pending_ = false;
  wake_posted_.store(false, std::memory_order_release);
  exchange->SetWake([this] {
    // One post is enough however many events arrive before it runs. The guard withdraws this
    // function before the connection can go away; the post keeps it alive until it ran.
    if (wake_posted_.exchange(true, std::memory_order_acq_rel)) return;
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      self->wake_posted_.store(false, std::memory_order_release);
      self->wake_pending_ = true;
      self->wake_timer_.cancel();
    });
  });
  shared_->handler->Handle(exchange);
  try {
    if (exchange->finished()) {
      // Answered at once: a client that closed its sending half still gets it.
      co_await WriteAnswer(*exchange, answer);
    } else {
      co_await (WriteAnswer(*exchange, answer) || WatchClient());
    }
  } catch (const std::exception&) {
    answer->complete = false;
  }
  if (answer->complete) {
    guard.SetDelivered();
  } else {
    exchange->MarkDisconnected();
    answer->outcome.client_gone = true;
    if (answer->outcome.status == 0) answer->outcome.status = 499;
  }
  answer->outcome.duration = Clock::now() - exchange->request().received;
  shared_->handler->Done(exchange->request(), answer->outcome);
}

}  // namespace deepinfer
