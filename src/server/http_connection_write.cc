// The half of a connection that writes answers and watches for a client that leaves.
#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <string>
#include <utility>

#include "base/version.h"
#include "server/http_connection.h"

namespace deepinfer {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Small: every running request holds such a buffer and hardly any uses it.
constexpr size_t kWatchReadBytes = 4 * 1024;
// How long, and how much, an unread request body is drained so that the client sees the answer
// and not a reset.
constexpr std::chrono::milliseconds kLingerTime{1'000};
constexpr size_t kLingerBytes = 4 << 20;
constexpr size_t kLingerReadBytes = 64 * 1024;

template <typename Fields>
void SetHeaders(Fields& fields, const HttpRequest& request, const HttpResponse& response,
                bool keep_alive) {
  fields.set(http::field::server, std::string("deepinfer/").append(kVersion));
  fields.set("X-Request-Id", request.request_id);
  fields.set("request-id", request.request_id);
  if (!response.content_type.empty()) {
    fields.set(http::field::content_type, response.content_type);
  }
  for (const HttpHeader& header : request.answer_headers) fields.set(header.name, header.value);
  for (const HttpHeader& header : response.headers) fields.set(header.name, header.value);
  fields.keep_alive(keep_alive);
}

bool HasBody(int status) { return status >= 200 && status != 204 && status != 304; }

}  // namespace

asio::awaitable<void> HttpConnection::WatchClient() {
  while (buffer_.size() < kMaxPipelinedBytes) {
    const auto [error, size] =
        co_await stream_.async_read_some(buffer_.prepare(kWatchReadBytes), kAwait);
    if (error) co_return;
    buffer_.commit(size);
  }
  // Nothing more is read before the answer is out; failing writes still tell a lost client.
  asio::steady_timer never(stream_.get_executor(), Clock::time_point::max());
  co_await never.async_wait(kAwait);
}

asio::awaitable<void> HttpConnection::WriteAnswer(HttpExchange& exchange, Answer* answer) {
  const HttpRequest& request = exchange.request();
  while (stream_.is_open()) {
    wake_pending_ = false;
    HttpExchange::Output output = exchange.Take();
    if (output.head && !output.streaming) {
      answer->complete = co_await WriteWhole(request, std::move(*output.head), answer);
      co_return;
    }
    if (output.head && !co_await WriteStreamHead(request, *output.head, answer)) co_return;
    for (HttpExchange::Chunk& chunk : output.chunks) {
      if (!co_await WriteChunk(chunk.bytes, answer)) co_return;
      chunk.hold.reset();
    }
    if (output.finished) {
      answer->complete = answer->version < 11 || co_await WriteChunk({}, answer);
      co_return;
    }
    if (wake_pending_) continue;
    const bool keep_alive = !output.keep_alive.empty();
    const auto keep_alive_at =
        keep_alive ? Clock::now() + output.keep_alive_interval : Clock::time_point::max();
    wake_timer_.expires_at(std::min(keep_alive_at, output.silent_until));
    const auto [wait_error] = co_await wake_timer_.async_wait(kAwait);
    if (wait_error || wake_pending_) continue;
    if (output.silent_until <= keep_alive_at) {
      exchange.EndSilence();
    } else if (!co_await WriteChunk(output.keep_alive, answer)) {
      co_return;
    }
  }
}

asio::awaitable<bool> HttpConnection::WriteWhole(const HttpRequest& request, HttpResponse response,
                                                 Answer* answer) {
  http::response<http::string_body> message;
  message.result(static_cast<unsigned>(response.status));
  message.version(answer->version);
  SetHeaders(message, request, response, answer->keep_alive);
  if (HasBody(response.status)) message.content_length(response.body.size());
  if (!answer->head_request && HasBody(response.status)) message.body() = std::move(response.body);
  answer->outcome.status = response.status;
  answer->outcome.response_bytes = message.body().size();
  http::response_serializer<http::string_body> serializer(message);
  while (!serializer.is_done()) {
    SetDeadline(shared_->options.write_progress_timeout);
    const auto [error, size] = co_await http::async_write_some(stream_, serializer, kAwait);
    if (error) co_return false;
  }
  ClearDeadline();
  co_return true;
}

asio::awaitable<bool> HttpConnection::WriteStreamHead(const HttpRequest& request,
                                                      const HttpResponse& head, Answer* answer) {
  const bool chunked = answer->version >= 11;
  if (!chunked) answer->keep_alive = false;
  http::response<http::empty_body> message;
  message.result(static_cast<unsigned>(head.status));
  message.version(answer->version);
  SetHeaders(message, request, head, answer->keep_alive);
  if (chunked) message.chunked(true);
  answer->outcome.status = head.status;
  http::response_serializer<http::empty_body> serializer(message);
  SetDeadline(shared_->options.write_progress_timeout);
  const auto [error, size] = co_await http::async_write_header(stream_, serializer, kAwait);
  ClearDeadline();
  co_return !error;
}

asio::awaitable<bool> HttpConnection::WriteChunk(std::string_view bytes, Answer* answer) {
  error_code error;
  SetDeadline(shared_->options.write_progress_timeout);
  const asio::const_buffer payload(bytes.data(), bytes.size());
  if (answer->version < 11) {
    error = std::get<0>(co_await asio::async_write(stream_, payload, kAwait));
  } else if (bytes.empty()) {
    error = std::get<0>(co_await asio::async_write(stream_, http::make_chunk_last(), kAwait));
  } else if (stream_.tls() == nullptr) {
    error = std::get<0>(co_await asio::async_write(stream_, http::make_chunk(payload), kAwait));
  } else {
    // TLS makes a record, and a write, of each buffer.
    const std::string framed = boost::beast::buffers_to_string(http::make_chunk(payload));
    error = std::get<0>(co_await asio::async_write(stream_, asio::buffer(framed), kAwait));
  }
  ClearDeadline();
  answer->outcome.response_bytes += bytes.size();
  co_return !error;
}

asio::awaitable<void> HttpConnection::SayGoodbye() {
  if (stream_.tls() == nullptr || !stream_.is_open()) co_return;
  SetDeadline(kLingerTime);
  co_await stream_.tls()->async_shutdown(kAwait);
}

asio::awaitable<void> HttpConnection::LingeringClose() {
  error_code ignored;
  if (stream_.tls() == nullptr) stream_.socket().shutdown(Socket::shutdown_send, ignored);
  SetDeadline(kLingerTime);
  std::string sink(kLingerReadBytes, '\0');
  for (size_t drained = 0; drained < kLingerBytes;) {
    const auto [error, size] =
        co_await stream_.async_read_some(asio::buffer(sink.data(), sink.size()), kAwait);
    if (error) break;
    drained += size;
  }
}

}  // namespace deepinfer
