#include "server/http_post.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

#include "base/version.h"

namespace deepinfer {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// A collector has little to say.
constexpr size_t kMostAnswerBytes = 1 << 20;

asio::awaitable<Result<int>> Post(const HttpTarget& target, const std::string& body) {
  const auto executor = co_await asio::this_coro::executor;
  const auto fail = [&](std::string_view what, const error_code& error) {
    return Unavailable(
        std::string(what).append(" ").append(target.host).append(":").append(target.port) + ": " +
        error.message());
  };
  tcp::resolver resolver(executor);
  const auto [resolve_error, found] =
      co_await resolver.async_resolve(target.host, target.port, kAwait);
  if (resolve_error) co_return fail("cannot resolve", resolve_error);
  tcp::socket socket(executor);
  const auto [connect_error, endpoint] = co_await asio::async_connect(socket, found, kAwait);
  if (connect_error) co_return fail("cannot connect to", connect_error);

  http::request<http::string_body> request(http::verb::post, target.path, 11);
  request.set(http::field::host, target.host + ":" + target.port);
  request.set(http::field::user_agent, std::string("deepinfer/").append(kVersion));
  request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = body;
  request.prepare_payload();
  const auto [write_error, written] = co_await http::async_write(socket, request, kAwait);
  if (write_error) co_return fail("cannot write to", write_error);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMostAnswerBytes);
  boost::beast::flat_buffer buffer;
  const auto [read_error, read] = co_await http::async_read(socket, buffer, parser, kAwait);
  if (read_error) co_return fail("no answer from", read_error);
  co_return static_cast<int>(parser.get().result_int());
}

}  // namespace

Result<HttpTarget> ParseHttpUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto invalid = [&] {
    return InvalidRequest("'" + std::string(url) + "' is not of the form http://host:port/path");
  };
  if (url.starts_with("https://")) {
    return Unsupported("'" + std::string(url) + "': only http:// is spoken to collectors");
  }
  if (!url.starts_with(kScheme)) return invalid();
  url.remove_prefix(kScheme.size());
  HttpTarget target;
  const size_t slash = url.find('/');
  if (slash != std::string_view::npos) target.path = url.substr(slash);
  std::string_view authority = url.substr(0, slash);
  // Colons inside brackets belong to an address of version 6.
  const size_t colon = authority.find(':', authority.starts_with('[') ? authority.find(']') : 0);
  const bool has_port = colon != std::string_view::npos;
  if (has_port) {
    target.port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
    const bool is_number = !target.port.empty() && target.port.size() <= 5 &&
                           target.port.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) return invalid();
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return invalid();
  target.host = authority;
  return target;
}

Result<int> PostJson(const HttpTarget& target, const std::string& body,
                     std::chrono::milliseconds timeout) {
  asio::io_context io(1);
  Result<int> result = DeadlineExceeded("no answer from " + target.host + " in time");
  asio::co_spawn(
      io, [&]() -> asio::awaitable<void> { result = co_await Post(target, body); }, asio::detached);
  io.run_for(timeout);
  return result;
}

}  // namespace deepinfer
