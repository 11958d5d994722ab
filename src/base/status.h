// Error codes and Status, the return type of operations without a value.
// Thread rule: values, no shared state.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace deepinfer {

// The one list of failure kinds; api.md §12 maps them to HTTP.
enum class StatusCode : unsigned char {
  kOk = 0,
  kInvalidRequest,
  kUnsupported,
  kNotFound,
  kResourceExhausted,
  kDeadline,
  kCancelled,
  kUnavailable,
  kDataCorruption,
  kInternal,
};

// "invalid_request", "data_corruption", ... as used in logs and metrics.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "data_corruption: shard x: ..." for logs; "ok" for success.
  std::string ToString() const;

  // Same code, message prefixed with "context: ". No effect on an ok status.
  Status Annotate(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidRequest(std::string m) { return {StatusCode::kInvalidRequest, std::move(m)}; }
inline Status Unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status DeadlineExceeded(std::string m) { return {StatusCode::kDeadline, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status DataCorruption(std::string m) { return {StatusCode::kDataCorruption, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

}  // namespace deepinfer
