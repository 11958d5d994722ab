// Listeners and network threads.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "server/http_connection.h"

namespace deepinfer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Unix = asio::local::stream_protocol;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// Connections beyond the limit that may wait for their 503 at one time.
constexpr int kMaxRefusing = 256;
// Files of the process besides client sockets.
constexpr rlim_t kReservedFiles = 1024;
constexpr std::chrono::milliseconds kAcceptRetry{50};
constexpr std::chrono::milliseconds kIdlePoll{2};
// Dense enough for percentiles of a minute, rare enough to cost nothing.
constexpr std::chrono::milliseconds kProbeInterval{50};

// The default soft limit of 1,024 files is below the default number of connections.
void RaiseFileLimit(int max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(max_connections) + kMaxRefusing + kReservedFiles;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<tcp::endpoint> ResolveListen(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (!error) return tcp::endpoint(address, port);
  tcp::resolver resolver(io);
  const auto results = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || results.empty()) return InvalidRequest("cannot resolve listen host " + host);
  return results.begin()->endpoint();
}

// Changes when one of the files does. Nanoseconds and inode: a file may be replaced within one
// tick of its clock.
std::string FileTimes(const TlsOptions& options) {
  std::string times;
  for (const std::string& file :
       {options.certificate_file, options.key_file, options.authority_file}) {
    struct stat info {};
    if (file.empty() || stat(file.c_str(), &info) != 0) continue;
    times += std::to_string(info.st_ino) + ":" + std::to_string(info.st_mtim.tv_sec) + "." +
             std::to_string(info.st_mtim.tv_nsec) + ":" + std::to_string(info.st_size) + " ";
  }
  return times;
}

}  // namespace

struct HttpServer::Impl {
  HttpShared shared;
  asio::io_context io;
  // Owns the acceptors: accepting and closing them happens here only.
  asio::strand<asio::io_context::executor_type> accept_strand = asio::make_strand(io);
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::optional<tcp::acceptor> tcp_acceptor;
  std::optional<Unix::acceptor> unix_acceptor;
  TlsContext tls_context;  // of new connections; accept strand only
  asio::steady_timer refresh_timer{accept_strand};
  asio::steady_timer probe_timer{accept_strand};
  uint16_t port = 0;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::weak_ptr<HttpConnection>> connections;  // under mutex; expired ones are swept
  bool stopped = false;                                    // under mutex

  Status Listen();
  template <typename Acceptor>
  asio::awaitable<void> Accept(Acceptor& acceptor);
  void Admit(HttpConnection::Socket socket, const TlsContext& tls);
  // Looks for changed certificates from time to time.
  asio::awaitable<void> RefreshTls();
  // Tells the handler now and then how long the loop keeps what is ready waiting.
  asio::awaitable<void> MeasureDelay();
  std::vector<std::shared_ptr<HttpConnection>> Live();
};

Status HttpServer::Impl::Listen() {
  const HttpServerOptions& options = shared.options;
  DI_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, ResolveListen(io, options.host, options.port));
  error_code error;
  const auto fail = [&](std::string where) {
    return Unavailable("cannot listen on " + std::move(where) + ": " + error.message());
  };
  const std::string name = options.host + ":" + std::to_string(options.port);
  tcp_acceptor.emplace(accept_strand);
  if (tcp_acceptor->open(endpoint.protocol(), error)) return fail(name);
  tcp_acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (tcp_acceptor->bind(endpoint, error)) return fail(name);
  if (tcp_acceptor->listen(asio::socket_base::max_listen_connections, error)) return fail(name);
  port = tcp_acceptor->local_endpoint(error).port();
  if (options.uds_path.empty()) return OkStatus();
  unlink(options.uds_path.c_str());
  unix_acceptor.emplace(accept_strand);
  if (unix_acceptor->open(Unix(), error)) return fail(options.uds_path);
  if (options.uds_path.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidRequest("Unix socket path is too long: " + options.uds_path);
  }
  if (unix_acceptor->bind(Unix::endpoint(options.uds_path), error)) return fail(options.uds_path);
  if (unix_acceptor->listen(asio::socket_base::max_listen_connections, error)) {
    return fail(options.uds_path);
  }
  return OkStatus();
}

template <typename Acceptor>
asio::awaitable<void> HttpServer::Impl::Accept(Acceptor& acceptor) {
  while (acceptor.is_open()) {
    HttpConnection::Socket socket(asio::make_strand(io));
    const auto [error] = co_await acceptor.async_accept(socket, kAwait);
    if (!error) {
      constexpr bool kIsTcp = std::is_same_v<Acceptor, tcp::acceptor>;
      Admit(std::move(socket), kIsTcp ? tls_context : nullptr);
      continue;
    }
    if (!acceptor.is_open() || error == asio::error::operation_aborted) co_return;
    // Out of files or memory: wait for connections to end instead of spinning.
    Log(LogLevel::kWarning, "http.accept_failed", {{"error", error.message()}});
    asio::steady_timer pause(io, kAcceptRetry);
    co_await pause.async_wait(kAwait);
  }
}

asio::awaitable<void> HttpServer::Impl::RefreshTls() {
  const TlsOptions& options = shared.options.tls;
  std::string seen = FileTimes(options);
  while (tcp_acceptor->is_open()) {
    refresh_timer.expires_after(options.refresh_interval);
    co_await refresh_timer.async_wait(kAwait);
    const std::string now = FileTimes(options);
    if (now == seen) continue;
    Result<TlsContext> fresh = LoadTlsContext(options);
    if (fresh.ok()) {
      tls_context = *std::move(fresh);
      Log(LogLevel::kInfo, "http.certificates_reloaded", {});
    } else {
      // The old ones go on; a file that was half written changes again.
      Log(LogLevel::kWarning, "http.certificates_unusable", {{"error", fresh.status()}});
    }
    seen = now;
  }
}

asio::awaitable<void> HttpServer::Impl::MeasureDelay() {
  while (tcp_acceptor->is_open()) {
    probe_timer.expires_after(kProbeInterval);
    co_await probe_timer.async_wait(kAwait);
    const auto ready = std::chrono::steady_clock::now();
    co_await asio::post(io, asio::use_awaitable);
    shared.handler->OnLoopDelay(std::chrono::steady_clock::now() - ready);
  }
}

void HttpServer::Impl::Admit(HttpConnection::Socket socket, const TlsContext& tls) {
  auto connection = std::make_shared<HttpConnection>(std::move(socket), tls, &shared);
  {
    std::lock_guard lock(mutex);
    if (stopped) return;
    if (connections.size() >= 64 && connections.size() == connections.capacity()) {
      std::erase_if(connections, [](const auto& entry) { return entry.expired(); });
    }
    connections.push_back(connection);
  }
  const int open = shared.open_connections.load(std::memory_order_acquire);
  if (open <= shared.options.max_connections) {
    connection->Start();
  } else if (open <= shared.options.max_connections + kMaxRefusing) {
    connection->StartRefusing();
  }
}

std::vector<std::shared_ptr<HttpConnection>> HttpServer::Impl::Live() {
  std::vector<std::shared_ptr<HttpConnection>> live;
  std::lock_guard lock(mutex);
  for (const auto& entry : connections) {
    if (auto connection = entry.lock()) live.push_back(std::move(connection));
  }
  return live;
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                      HttpHandler* handler) {
  RaiseFileLimit(options.max_connections);
  auto impl = std::make_unique<Impl>();
  impl->shared.options = std::move(options);
  impl->shared.handler = handler;
  const TlsOptions& tls = impl->shared.options.tls;
  if (tls.enabled()) {
    DI_ASSIGN_OR_RETURN(impl->tls_context, LoadTlsContext(tls));
  }
  DI_RETURN_IF_ERROR(impl->Listen());
  impl->work.emplace(impl->io.get_executor());
  Impl* const raw = impl.get();
  asio::co_spawn(
      raw->accept_strand, [raw] { return raw->Accept(*raw->tcp_acceptor); }, asio::detached);
  if (raw->unix_acceptor) {
    asio::co_spawn(
        raw->accept_strand, [raw] { return raw->Accept(*raw->unix_acceptor); }, asio::detached);
  }
  asio::co_spawn(
      raw->accept_strand, [raw] { return raw->MeasureDelay(); }, asio::detached);
  if (tls.enabled() && tls.refresh_interval.count() > 0) {
    asio::co_spawn(
        raw->accept_strand, [raw] { return raw->RefreshTls(); }, asio::detached);
  }
  for (int i = 0; i < std::max(1, raw->shared.options.num_threads); ++i) {
    raw->threads.emplace_back([raw] { raw->io.run(); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(); }

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::SetDraining() {
  impl_->shared.draining.store(true, std::memory_order_release);
  for (const auto& connection : impl_->Live()) connection->CloseIfIdle();
}

bool HttpServer::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  while (impl_->shared.active_exchanges.load(std::memory_order_acquire) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kIdlePoll);
  }
  return true;
}

void HttpServer::Stop() {
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->stopped) return;
    impl_->stopped = true;
  }
  Impl* const raw = impl_.get();
  asio::post(raw->accept_strand, [raw] {
    error_code ignored;
    raw->tcp_acceptor->close(ignored);
    if (raw->unix_acceptor) raw->unix_acceptor->close(ignored);
    raw->refresh_timer.cancel();
    raw->probe_timer.cancel();
  });
  for (const auto& connection : raw->Live()) connection->Close();
  raw->work.reset();
  for (std::thread& thread : raw->threads) thread.join();
  if (!raw->shared.options.uds_path.empty()) unlink(raw->shared.options.uds_path.c_str());
}

bool IsLoopbackHost(std::string_view host) {
  if (host == "localhost") return true;
  error_code error;
  const auto address = asio::ip::make_address(std::string(host), error);
  return !error && address.is_loopback();
}

}  // namespace deepinfer
