// Hands the spans of finished requests to a collector (OTLP over HTTP in JSON) or a file, on a
// thread of its own behind a bounded queue: a collector that is slow or gone never holds a request
// (api.md §17).
// Thread rule: any thread. Owner: server/server_state.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/line_appender.h"
#include "base/result.h"
#include "server/http_post.h"

namespace deepinfer {

struct RequestFacts;

struct TraceOptions {
  std::string endpoint;  // "http://host:4318/v1/traces", or https; "": none
  std::string file;      // in place of an endpoint: one export request a line; "": none
  bool newer_names = false;
  size_t max_queued_requests = 4096;
  std::chrono::milliseconds export_timeout{5000};  // of one try
  std::chrono::milliseconds stop_time{5000};       // for all that is queued when the server ends
  ResolveHost resolve_host = ResolveHostBySystem;

  bool enabled() const { return !endpoint.empty() || !file.empty(); }
};

class TraceExporter {
 public:
  // invalid_request, unsupported: the endpoint, or both it and a file; unavailable: the file cannot
  // be opened.
  static Result<std::unique_ptr<TraceExporter>> Open(TraceOptions options);
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  // Ignored unless the request is traced. Never blocks; a full queue drops it.
  void Record(const RequestFacts& facts);

  // Hands over what is queued until the first try that fails or the time to stop is up; what is
  // left is dropped. Idempotent.
  void Stop();

  int64_t num_exported() const { return num_exported_.load(std::memory_order_relaxed); }
  int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }

 private:
  TraceExporter(TraceOptions options, HttpTarget target, int fd);
  void Loop();
  // Waits for requests and for more to come along; empty when it is time to stop.
  std::vector<std::string> NextBatch();
  // False when the same batch may be tried again.
  bool Export(const std::vector<std::string>& batch);
  void Drop(size_t count);

  // Of a try that begins now.
  std::chrono::steady_clock::time_point Deadline();

  const TraceOptions options_;
  HttpPoster poster_;  // the thread only
  const int fd_;       // -1: no file
  LineAppender file_;  // the thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;                        // spans of a request each; under mutex_
  bool stopping_ = false;                                // under mutex_
  std::chrono::steady_clock::time_point stop_deadline_;  // once stopping; under mutex_
  bool is_failing_ = false;                              // told already; the thread only

  std::atomic<int64_t> num_exported_{0};
  std::atomic<int64_t> num_dropped_{0};
  std::thread thread_;
};

}  // namespace deepinfer
