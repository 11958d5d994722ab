// HTTP/1.1 server: sockets, framing, limits and time-outs; knows nothing of routes or models.
// Thread rule: network threads only move bytes. HttpHandler runs on them and must not block; an
// HttpExchange may be answered from any thread.
// Owner: server/server.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct ApiKey;
struct Route;
class RequestRecord;

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string path;    // as sent, still percent-encoded, without the query
  std::vector<HttpHeader> headers;
  std::string body;
  std::string request_id;                          // api.md §14
  std::chrono::steady_clock::time_point received;  // header complete

  // Filled by HttpHandler::Admit.
  const Route* route = nullptr;
  const ApiKey* key = nullptr;
  std::vector<HttpHeader> answer_headers;  // added to whatever answer follows
  std::shared_ptr<RequestRecord> record;
  bool hosted_status_codes = false;  // 422 for refused values

  // First value of the header, compared without case; "" when absent.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers{};
  std::string body{};
};

// How an exchange ended; handed to HttpHandler::Done.
struct HttpOutcome {
  int status = 0;  // 499 when the client left before a response began
  uint64_t response_bytes = 0;
  bool client_gone = false;
  std::chrono::steady_clock::duration duration{};
};

// One request and its answer: either Respond once, or StartStream, Send*, Finish.
// Calls after the end or after the client has gone are ignored.
class HttpExchange {
 public:
  explicit HttpExchange(HttpRequest request) : request_(std::move(request)) {}
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  const HttpRequest& request() const { return request_; }

  void Respond(HttpResponse response);

  // Sends status and headers; the body follows through Send, each call in one write of its own.
  // hold lives until the bytes are written or never will be: it counts what the client has not
  // read.
  void StartStream(HttpResponse head);
  void Send(std::string bytes, std::shared_ptr<void> hold = nullptr);
  void Finish();

  // Like Send, but for a word about an answer that still waits: keep-alives go on behind it.
  void SendAhead(std::string bytes);

  // Sends `bytes` every `interval` while nothing else has been sent since StartStream.
  void SetKeepAlive(std::string bytes, std::chrono::milliseconds interval);

  // Calls back once, on a network thread, when nothing was sent until `when`.
  void OnSilence(std::chrono::steady_clock::time_point when, std::function<void()> callback);

  // Called at most once, on a network thread, when the client is gone (reset, half-close, failed
  // or stalled write) or the server stops; at once when that has happened already. Dropped without
  // a call when the answer was delivered.
  void OnDisconnect(std::function<void()> callback);

  bool disconnected() const;
  bool finished() const;

  // --- used by the connection ---
  struct Chunk {
    std::string bytes;
    std::shared_ptr<void> hold;
  };
  struct Output {
    std::optional<HttpResponse> head;
    bool streaming = false;
    bool finished = false;
    std::vector<Chunk> chunks;
    std::string keep_alive;  // not empty: send after keep_alive_interval of silence
    std::chrono::milliseconds keep_alive_interval{0};
    // Call EndSilence then; max: never.
    std::chrono::steady_clock::time_point silent_until =
        std::chrono::steady_clock::time_point::max();
  };
  // Moves out what is due. wake is called (any thread) when there is more.
  Output Take();
  void SetWake(std::function<void()> wake);
  void EndSilence();
  void MarkDisconnected();
  void MarkDelivered();

 private:
  // What OnSilence registered and is not needed any more.
  struct SilenceWatch {
    std::chrono::steady_clock::time_point when = std::chrono::steady_clock::time_point::max();
    std::function<void()> callback;
  };

  void Wake();

  HttpRequest request_;
  mutable std::mutex mutex_;
  std::optional<HttpResponse> head_;
  bool started_ = false;
  bool streaming_ = false;
  bool finished_ = false;
  bool sent_any_ = false;
  bool disconnected_ = false;
  std::vector<Chunk> chunks_;
  std::string keep_alive_;
  std::chrono::milliseconds keep_alive_interval_{0};
  SilenceWatch silence_;
  std::function<void()> wake_;
  std::function<void()> on_disconnect_;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Headers are complete, the body is not read. A response refuses the request.
  virtual std::optional<HttpResponse> Admit(HttpRequest& request) = 0;

  // The request is complete.
  virtual void Handle(std::shared_ptr<HttpExchange> exchange) = 0;

  // The answer is written or the client is gone; called once per request that Admit saw.
  virtual void Done(const HttpRequest& request, const HttpOutcome& outcome) = 0;

  // Answer to a fault found below the routes: status and code of api.md §12. Of `request` only
  // what was read so far is there.
  virtual HttpResponse Error(const HttpRequest& request, int status, std::string_view code,
                             std::string_view message) = 0;

  // How long something that was ready to run waited for a network thread, measured now and then.
  virtual void OnLoopDelay(std::chrono::nanoseconds /*delay*/) {}
};

// PEM files; nothing of it: plain HTTP.
struct TlsOptions {
  std::string certificate_file;  // with its chain
  std::string key_file;
  std::string authority_file;  // clients must show a certificate that it signed; "": none
  std::string ciphers;         // of TLS 1.2, in OpenSSL's notation; "": its default
  // Time between looks for files that changed; 0: never.
  std::chrono::milliseconds refresh_interval{0};

  bool enabled() const {
    return !certificate_file.empty() || !key_file.empty() || !authority_file.empty() ||
           !ciphers.empty() || refresh_interval.count() > 0;
  }
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: the system chooses
  std::string uds_path;  // also listen here when not empty
  TlsOptions tls;        // of the TCP port
  int num_threads = 2;
  int max_connections = 4096;
  uint64_t max_body_bytes = 96ull << 20;
  uint32_t max_header_bytes = 64u << 10;
  uint32_t max_header_fields = 100;
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_progress_timeout{60'000};
  std::chrono::milliseconds write_progress_timeout{60'000};
};

class HttpServer {
 public:
  // Listens before it returns. handler is borrowed and outlives the server.
  // Errors: unavailable when an address cannot be bound, invalid_request for a bad one or for
  // certificates that cannot be used.
  static Result<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler* handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

  // From now on every answer closes its connection. Listening goes on, so that probes can read
  // that the server drains.
  void SetDraining();

  // Waits until no exchange is in progress; false when the deadline came first.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // Closes everything and joins the threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// True for hosts that only this machine can reach: 127.0.0.0/8, ::1, "localhost".
bool IsLoopbackHost(std::string_view host);

}  // namespace deepinfer
