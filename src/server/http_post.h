// HTTP requests to a collector, on the calling thread.
// Thread rule: any thread; blocks until the deadline at most.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct HttpTarget {
  bool is_tls = false;
  std::string host;
  std::string port = "80";
  std::string path = "/";
};

// "http://host[:port][/path]" or the same with https. invalid_request.
Result<HttpTarget> ParseHttpUrl(std::string_view url);

// The addresses of a host, as numbers. Blocks, nobody knows how long. unavailable.
using ResolveHost = std::function<Result<std::vector<std::string>>(const std::string& host)>;
Result<std::vector<std::string>> ResolveHostBySystem(const std::string& host);

// Over TLS the host must show a certificate for its name that an authority of the system signed
// (OpenSSL's defaults, SSL_CERT_FILE included).
// Thread rule: one object, one thread.
class HttpPoster {
 public:
  explicit HttpPoster(HttpTarget target, ResolveHost resolve = ResolveHostBySystem);
  ~HttpPoster();
  HttpPoster(const HttpPoster&) = delete;
  HttpPoster& operator=(const HttpPoster&) = delete;

  // Posts JSON and returns the status of the answer. unavailable: no connection or no answer;
  // deadline.
  Result<int> PostJson(const std::string& body, std::chrono::steady_clock::time_point deadline);

 private:
  struct Lookup;
  Result<std::vector<std::string>> Addresses(std::chrono::steady_clock::time_point deadline);

  const HttpTarget target_;
  const ResolveHost resolve_;
  // Under way on a thread of its own, which may outlive this object; one at a time.
  std::shared_ptr<Lookup> lookup_;
};

}  // namespace deepinfer
