// The HTTP side of a load test: many streamed completions at once, each timed event by event.
// Thread rule: RunLoad blocks; its callbacks run on its own thread, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/bench_serve_report.h"

namespace deepinfer {

struct LoadTarget {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string authorization;  // value of the header; "" for none

  // "http://host:port", the scheme and the port optional. invalid_request for another form.
  static Result<LoadTarget> Parse(const std::string& url);
};

// The body of a GET. unavailable when the server does not answer with 200.
Result<std::string> HttpGet(const LoadTarget& target, const std::string& path);

struct LoadPlan {
  std::string path;  // of the POST
  int64_t num_requests = 0;
  std::function<std::string(int64_t index)> body;
  // Seconds after the start at which a request is due; empty: a closed loop.
  std::function<double(int64_t index)> due_s;
  int64_t max_concurrency = 1;  // requests in flight; in an open loop 0 means no limit
  double timeout_s = 600;       // of one request
};

struct LoadState {
  int64_t finished = 0;
  int64_t failed = 0;
  int64_t running = 0;
  int64_t events = 0;  // with text
  double seconds = 0;
};

struct LoadResult {
  std::vector<RequestOutcome> outcomes;  // by index
  double duration_s = 0;
};

// Sends every request of the plan; on_progress is called several times a second.
Result<LoadResult> RunLoad(const LoadTarget& target, const LoadPlan& plan,
                           const std::function<void(const LoadState&)>& on_progress);

// Takes a streamed answer apart and times it. Split from the sockets for tests.
class StreamReader {
 public:
  explicit StreamReader(RequestOutcome* outcome) : outcome_(outcome) {}

  // Bytes of the body, which arrived at now_s. Returns how many events with text they completed.
  int64_t Take(std::string_view bytes, double now_s);

  // The body is over: decides whether the request is ok.
  void Finish();

 private:
  void TakeEvent(std::string_view data, double now_s, int64_t* num_events);

  RequestOutcome* outcome_;
  std::string line_;
  std::string refusal_;  // what came with another status than 200
  bool has_token_ = false;
  bool done_ = false;
};

}  // namespace deepinfer
