#include "server/trace_exporter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/json_writer.h"
#include "base/log.h"
#include "base/version.h"
#include "server/request_record.h"
#include "server/trace_spans.h"

namespace deepinfer {
namespace {

// Requests of one export, and how long the first of them waits for others.
constexpr size_t kMaxBatch = 256;
constexpr std::chrono::milliseconds kBatchDelay{200};
constexpr std::chrono::seconds kFirstRetry{1};
constexpr std::chrono::seconds kLastRetry{30};

// One ExportTraceServiceRequest.
std::string RequestOf(const std::vector<std::string>& batch) {
  std::string body;
  JsonWriter json(&body);
  json.BeginObject().Key("resourceSpans").BeginArray().BeginObject();
  json.Key("resource").BeginObject().Key("attributes").BeginArray();
  for (const auto& [key, value] : {std::pair("service.name", std::string_view("deepinfer")),
                                   std::pair("service.version", std::string_view(kVersion))}) {
    json.BeginObject().Field("key", key).Key("value").BeginObject();
    json.Field("stringValue", value).EndObject().EndObject();
  }
  json.EndArray().EndObject();
  json.Key("scopeSpans").BeginArray().BeginObject();
  json.Key("scope").BeginObject().Field("name", "deepinfer").EndObject();
  json.Key("spans").BeginArray();
  for (const std::string& spans : batch) json.Raw(spans);
  json.EndArray().EndObject().EndArray().EndObject().EndArray().EndObject();
  return body;
}

// Whether the protocol lets the sender try again.
bool IsRetryable(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

Result<std::unique_ptr<TraceExporter>> TraceExporter::Open(TraceOptions options) {
  HttpTarget target;
  if (!options.endpoint.empty() && !options.file.empty()) {
    return InvalidRequest("--otlp-traces-endpoint and --trace-file exclude each other");
  }
  if (!options.endpoint.empty()) {
    DI_ASSIGN_OR_RETURN(target, ParseHttpUrl(options.endpoint));
  }
  int fd = -1;
  if (!options.file.empty()) {
    fd = open(options.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) return Unavailable("trace file " + options.file + ": " + std::strerror(errno));
  }
  return std::unique_ptr<TraceExporter>(
      new TraceExporter(std::move(options), std::move(target), fd));
}

TraceExporter::TraceExporter(TraceOptions options, HttpTarget target, int fd)
    : options_(std::move(options)),
      poster_(std::move(target), options_.resolve_host),
      fd_(fd),
      thread_([this] { Loop(); }) {}

TraceExporter::~TraceExporter() {
  Stop();
  if (fd_ >= 0) close(fd_);
}

void TraceExporter::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(stopping_, true)) {
      stop_deadline_ = std::chrono::steady_clock::now() + options_.stop_time;
    }
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TraceExporter::Record(const RequestFacts& facts) {
  if (facts.trace.span_id.empty()) return;
  std::string spans = FormatSpans(facts, options_.newer_names);
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_ && queue_.size() < options_.max_queued_requests) {
      queue_.push_back(std::move(spans));
      changed_.notify_all();
      return;
    }
  }
  Drop(1);
}

void TraceExporter::Drop(size_t count) {
  num_dropped_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
}

std::vector<std::string> TraceExporter::NextBatch() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
  changed_.wait_for(lock, kBatchDelay, [this] { return stopping_ || queue_.size() >= kMaxBatch; });
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), kMaxBatch));
  std::vector<std::string> batch(std::make_move_iterator(queue_.begin()),
                                 std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return batch;
}

void TraceExporter::Loop() {
  while (true) {
    const std::vector<std::string> batch = NextBatch();
    if (batch.empty()) return;
    std::chrono::seconds pause = kFirstRetry;
    while (!Export(batch)) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, pause, [this] { return stopping_; })) {
        // Nobody waits for a collector that is gone.
        Drop(batch.size() + queue_.size());
        queue_.clear();
        return;
      }
      pause = std::min(2 * pause, kLastRetry);
    }
  }
}

std::chrono::steady_clock::time_point TraceExporter::Deadline() {
  const auto deadline = std::chrono::steady_clock::now() + options_.export_timeout;
  const std::lock_guard lock(mutex_);
  return stopping_ ? std::min(deadline, stop_deadline_) : deadline;
}

bool TraceExporter::Export(const std::vector<std::string>& batch) {
  const std::string body = RequestOf(batch);
  if (fd_ >= 0) {
    (file_.Append(fd_, body) ? num_exported_ : num_dropped_)
        .fetch_add(std::ssize(batch), std::memory_order_relaxed);
    return true;
  }
  const Result<int> status = poster_.PostJson(body, Deadline());
  if (status.ok() && *status >= 200 && *status < 300) {
    is_failing_ = false;
    num_exported_.fetch_add(std::ssize(batch), std::memory_order_relaxed);
    return true;
  }
  if (!std::exchange(is_failing_, true)) {
    Log(LogLevel::kWarning, "traces.export_failed",
        {{"endpoint", options_.endpoint},
         {"reason", status.ok() ? "status " + std::to_string(*status)
                                : std::string(status.status().message())}});
  }
  if (!status.ok() || IsRetryable(*status)) return false;
  Drop(batch.size());
  return true;
}

}  // namespace deepinfer
