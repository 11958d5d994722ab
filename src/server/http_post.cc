#include "server/http_post.h"

#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
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

std::vector<tcp::endpoint> EndpointsOf(const std::vector<std::string>& addresses,
                                       std::string_view port_text) {
  uint16_t port = 0;
  std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  std::vector<tcp::endpoint> endpoints;
  for (const std::string& text : addresses) {
    error_code error;
    const auto address = asio::ip::make_address(text, error);
    if (!error) endpoints.emplace_back(address, port);
  }
  return endpoints;
}

Status Failed(const HttpTarget& target, std::string_view what, const error_code& error) {
  return Unavailable(
      std::string(what).append(" ").append(target.host).append(":").append(target.port) + ": " +
      error.message());
}

// Over a connection that stands.
template <typename Stream>
asio::awaitable<Result<int>> Exchange(const HttpTarget& target, const std::string& body,
                                      Stream& stream) {
  http::request<http::string_body> request(http::verb::post, target.path, 11);
  request.set(http::field::host, target.host + ":" + target.port);
  request.set(http::field::user_agent, std::string("deepinfer/").append(kVersion));
  request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = body;
  request.prepare_payload();
  const auto [write_error, written] = co_await http::async_write(stream, request, kAwait);
  if (write_error) co_return Failed(target, "cannot write to", write_error);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMostAnswerBytes);
  boost::beast::flat_buffer buffer;
  const auto [read_error, read] = co_await http::async_read(stream, buffer, parser, kAwait);
  if (read_error) co_return Failed(target, "no answer from", read_error);
  co_return static_cast<int>(parser.get().result_int());
}

asio::awaitable<Result<int>> Post(const HttpTarget& target,
                                  const std::vector<tcp::endpoint>& endpoints,
                                  const std::string& body) {
  tcp::socket socket(co_await asio::this_coro::executor);
  const auto [connect_error, endpoint] = co_await asio::async_connect(socket, endpoints, kAwait);
  if (connect_error) co_return Failed(target, "cannot connect to", connect_error);
  if (!target.is_tls) co_return co_await Exchange(target, body, socket);

  asio::ssl::context tls(asio::ssl::context::tls_client);
  error_code error;
  if (tls.set_default_verify_paths(error)) co_return Failed(target, "no authorities for", error);
  SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_2_VERSION);
  asio::ssl::stream<tcp::socket> stream(std::move(socket), tls);
  stream.set_verify_mode(asio::ssl::verify_peer);
  stream.set_verify_callback(asio::ssl::host_name_verification(target.host));
  // A server of many names must know which one is meant; an address is not one.
  if (asio::ip::make_address(target.host, error); error) {
    SSL_set_tlsext_host_name(stream.native_handle(), target.host.c_str());
  }
  const auto [handshake_error] =
      co_await stream.async_handshake(asio::ssl::stream_base::client, kAwait);
  if (handshake_error) co_return Failed(target, "no TLS with", handshake_error);
  co_return co_await Exchange(target, body, stream);
}

}  // namespace

Result<HttpTarget> ParseHttpUrl(std::string_view url) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  const auto invalid = [&] {
    return InvalidRequest("'" + std::string(url) + "' is not of the form http[s]://host:port/path");
  };
  HttpTarget target;
  target.is_tls = url.starts_with(kTls);
  if (!target.is_tls && !url.starts_with(kPlain)) return invalid();
  url.remove_prefix(target.is_tls ? kTls.size() : kPlain.size());
  if (target.is_tls) target.port = "443";
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

Result<std::vector<std::string>> ResolveHostBySystem(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return Unavailable("cannot resolve " + host + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      addresses.emplace_back(text);
    }
  }
  return addresses;
}

struct HttpPoster::Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<std::vector<std::string>>> found;  // under mutex
};

HttpPoster::HttpPoster(HttpTarget target, ResolveHost resolve)
    : target_(std::move(target)), resolve_(std::move(resolve)) {}

HttpPoster::~HttpPoster() = default;

// Looking a name up cannot be cut short: what takes too long goes on without us, and the next post
// waits for it rather than begin another.
Result<std::vector<std::string>> HttpPoster::Addresses(
    std::chrono::steady_clock::time_point deadline) {
  if (lookup_ == nullptr) {
    lookup_ = std::make_shared<Lookup>();
    std::thread([lookup = lookup_, resolve = resolve_, host = target_.host] {
      Result<std::vector<std::string>> found = resolve(host);
      const std::lock_guard lock(lookup->mutex);
      lookup->found = std::move(found);
      lookup->changed.notify_all();
    }).detach();
  }
  const std::shared_ptr<Lookup> lookup = lookup_;
  std::unique_lock lock(lookup->mutex);
  if (!lookup->changed.wait_until(lock, deadline, [&] { return lookup->found.has_value(); })) {
    return DeadlineExceeded("no address of " + target_.host + " in time");
  }
  lookup_.reset();
  return *std::move(lookup->found);
}

Result<int> HttpPoster::PostJson(const std::string& body,
                                 std::chrono::steady_clock::time_point deadline) {
  std::vector<std::string> addresses;
  DI_ASSIGN_OR_RETURN(addresses, Addresses(deadline));
  const std::vector<tcp::endpoint> endpoints = EndpointsOf(addresses, target_.port);
  asio::io_context io(1);
  Result<int> result = DeadlineExceeded("no answer from " + target_.host + " in time");
  asio::co_spawn(
      io, [&]() -> asio::awaitable<void> { result = co_await Post(target_, endpoints, body); },
      asio::detached);
  io.run_until(deadline);
  return result;
}

}  // namespace deepinfer
