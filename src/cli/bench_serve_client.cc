#include "cli/bench_serve_client.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <utility>

namespace deepinfer {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kProgressInterval{200};
constexpr std::chrono::seconds kGetTimeout{30};
constexpr size_t kReadBytes = 16 * 1024;

http::request<http::string_body> MakeRequest(http::verb verb, const LoadTarget& target,
                                             const std::string& path, std::string body) {
  http::request<http::string_body> request(verb, path, 11);
  request.set(http::field::host, target.host);
  if (!target.authorization.empty()) {
    request.set(http::field::authorization, target.authorization);
  }
  if (verb == http::verb::post) request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// One run of a plan on one thread.
class Run {
 public:
  Run(const LoadTarget& target, const LoadPlan& plan, tcp::resolver::results_type endpoints,
      const std::function<void(const LoadState&)>& on_progress)
      : target_(target),
        plan_(plan),
        endpoints_(std::move(endpoints)),
        on_progress_(on_progress),
        progress_timer_(io_),
        place_free_(io_) {
    result_.outcomes.resize(static_cast<size_t>(plan.num_requests));
  }

  LoadResult Go() {
    start_ = Clock::now();
    if (plan_.due_s) {
      asio::co_spawn(io_, OpenLoop(), asio::detached);
    } else {
      for (int64_t i = 0; i < std::min(plan_.max_concurrency, plan_.num_requests); ++i) {
        asio::co_spawn(io_, ClosedLoop(), asio::detached);
      }
    }
    asio::co_spawn(io_, Progress(), asio::detached);
    io_.run();
    return std::move(result_);
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // The next request as soon as the last one is over.
  asio::awaitable<void> ClosedLoop() {
    while (next_ < plan_.num_requests) co_await OneRequest(next_++);
  }

  // Every request when it is due, whatever the others do.
  asio::awaitable<void> OpenLoop() {
    asio::steady_timer timer(io_);
    for (; next_ < plan_.num_requests; ++next_) {
      timer.expires_at(start_ + Nanoseconds(plan_.due_s(next_)));
      co_await timer.async_wait(kAwait);
      while (plan_.max_concurrency > 0 && state_.running >= plan_.max_concurrency) {
        place_free_.expires_at(Clock::time_point::max());
        co_await place_free_.async_wait(kAwait);
      }
      asio::co_spawn(io_, OneRequest(next_), asio::detached);
    }
  }

  asio::awaitable<void> Progress() {
    while (state_.finished < plan_.num_requests) {
      progress_timer_.expires_after(kProgressInterval);
      co_await progress_timer_.async_wait(kAwait);
      state_.seconds = Now();
      on_progress_(state_);
    }
  }

  asio::awaitable<void> OneRequest(int64_t index) {
    RequestOutcome& outcome = result_.outcomes[static_cast<size_t>(index)];
    http::request<http::string_body> request =
        MakeRequest(http::verb::post, target_, plan_.path, plan_.body(index));
    ++state_.running;
    outcome.start_s = Now();
    StreamReader reader(&outcome);
    co_await Exchange(request, &reader, &outcome);
    reader.Finish();
    --state_.running;
    ++state_.finished;
    if (!outcome.ok) ++state_.failed;
    place_free_.cancel();
    if (state_.finished == plan_.num_requests) {
      result_.duration_s = Now();
      progress_timer_.cancel();
    }
  }

  asio::awaitable<void> Exchange(const http::request<http::string_body>& request,
                                 StreamReader* reader, RequestOutcome* outcome) {
    beast::tcp_stream stream(io_);
    stream.expires_after(std::chrono::duration_cast<Clock::duration>(Nanoseconds(plan_.timeout_s)));
    const auto [connect_error, endpoint] = co_await stream.async_connect(endpoints_, kAwait);
    if (connect_error) {
      outcome->error = "connect: " + connect_error.message();
      co_return;
    }
    error_code ignored;
    stream.socket().set_option(tcp::no_delay(true), ignored);
    const auto [write_error, written] = co_await http::async_write(stream, request, kAwait);
    if (write_error) {
      outcome->error = "write: " + write_error.message();
      co_return;
    }
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    const auto [head_error, head_size] =
        co_await http::async_read_header(stream, buffer, parser, kAwait);
    if (head_error) {
      outcome->error = "read: " + head_error.message();
      co_return;
    }
    outcome->status = parser.get().result_int();
    std::string chunk(kReadBytes, '\0');
    while (!parser.is_done()) {
      parser.get().body() = {.data = chunk.data(), .size = chunk.size(), .more = true};
      const auto [error, size] = co_await http::async_read_some(stream, buffer, parser, kAwait);
      const size_t num_bytes = chunk.size() - parser.get().body().size;
      state_.events += reader->Take({chunk.data(), num_bytes}, Now());
      if (error && error != http::error::need_buffer) {
        outcome->error = "read: " + error.message();
        co_return;
      }
    }
  }

  const LoadTarget& target_;
  const LoadPlan& plan_;
  const tcp::resolver::results_type endpoints_;
  const std::function<void(const LoadState&)>& on_progress_;
  asio::io_context io_{1};
  asio::steady_timer progress_timer_;
  asio::steady_timer place_free_;  // cancelled when a request ends
  Clock::time_point start_;
  int64_t next_ = 0;
  LoadState state_;
  LoadResult result_;
};

Result<tcp::resolver::results_type> Resolve(const LoadTarget& target) {
  asio::io_context io;
  error_code error;
  auto endpoints = tcp::resolver(io).resolve(target.host, target.port, error);
  if (error) return InvalidRequest("cannot resolve " + target.host + ": " + error.message());
  return endpoints;
}

}  // namespace

Result<LoadTarget> LoadTarget::Parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  LoadTarget target;
  const size_t colon = rest.rfind(':');
  // The colons of an IPv6 address are inside brackets.
  const bool has_port = colon != std::string_view::npos && rest.find(']', colon) == rest.npos;
  std::string_view host = rest.substr(0, has_port ? colon : rest.size());
  if (has_port) target.port = rest.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool port_is_number =
      !target.port.empty() && target.port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || host.find_first_of("/ ") != host.npos || !port_is_number) {
    return InvalidRequest("'" + url + "' is not of the form http://host:port");
  }
  target.host = host;
  return target;
}

Result<std::string> HttpGet(const LoadTarget& target, const std::string& path) {
  DI_ASSIGN_OR_RETURN(const auto endpoints, Resolve(target));
  asio::io_context io;
  beast::tcp_stream stream(io);
  http::response<http::string_body> response;
  error_code failure;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        stream.expires_after(kGetTimeout);
        failure = std::get<0>(co_await stream.async_connect(endpoints, kAwait));
        if (failure) co_return;
        const auto request = MakeRequest(http::verb::get, target, path, "");
        failure = std::get<0>(co_await http::async_write(stream, request, kAwait));
        if (failure) co_return;
        beast::flat_buffer buffer;
        failure = std::get<0>(co_await http::async_read(stream, buffer, response, kAwait));
      },
      asio::detached);
  io.run();
  const std::string where = "http://" + target.host + ":" + target.port + path;
  if (failure) return Unavailable(where + ": " + failure.message());
  if (response.result_int() != 200) {
    return Unavailable(where + " answered with status " + std::to_string(response.result_int()));
  }
  return std::move(response.body());
}

Result<LoadResult> RunLoad(const LoadTarget& target, const LoadPlan& plan,
                           const std::function<void(const LoadState&)>& on_progress) {
  DI_ASSIGN_OR_RETURN(auto endpoints, Resolve(target));
  return Run(target, plan, std::move(endpoints), on_progress).Go();
}

}  // namespace deepinfer
