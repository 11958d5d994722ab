// One HTTP request to a collector, on the calling thread.
// Thread rule: any thread; blocks until the deadline at most.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

struct HttpTarget {
  std::string host;
  std::string port = "80";
  std::string path = "/";
};

// "http://host[:port][/path]". invalid_request; unsupported for another scheme.
Result<HttpTarget> ParseHttpUrl(std::string_view url);

// Posts JSON and returns the status of the answer. unavailable: no connection or no answer;
// deadline.
Result<int> PostJson(const HttpTarget& target, const std::string& body,
                     std::chrono::milliseconds timeout);

}  // namespace deepinfer
