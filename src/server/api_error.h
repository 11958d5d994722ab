// The error a client sees: HTTP status, the fields of the error body, and where in the conversion
// it arose (api.md §12).
// Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "base/status.h"

namespace deepinfer {

// Which half of request conversion refused the request. Both answer 400; the reference vectors
// tell them apart.
enum class ErrorStage : unsigned char {
  kParse,    // the body is not JSON or does not fit the request type
  kConvert,  // it fits, but its values are refused
  kServe,    // raised after conversion: admission, engine, limits
};

std::string_view ErrorStageName(ErrorStage stage);

struct ApiError {
  int status = 400;
  ErrorStage stage = ErrorStage::kConvert;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code = "invalid_value";
  std::optional<std::string> param;  // path such as messages[2].content[0].type
  int64_t num_prompt_tokens = -1;    // context_length_exceeded only
  int64_t num_context_tokens = -1;   // context_length_exceeded only
  int32_t retry_after_s = -1;        // 429 and 503: value of Retry-After
  bool retry_is_vain = false;        // x-should-retry: false
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

// {"error":{"message","type","param","code"}} plus n_prompt_tokens and n_ctx when set.
std::string OpenAiErrorBody(const ApiError& error);

// {"type":"error","error":{"type","message"},"request_id":...} for the Messages routes.
std::string AnthropicErrorBody(const ApiError& error, std::string_view request_id);

// HTTP status the Messages routes answer with: 503 becomes 529.
int AnthropicHttpStatus(const ApiError& error);

// The one map from library codes to HTTP. Messages of internal and data_corruption are replaced
// by a general sentence. Precondition: !status.ok().
ApiError ApiErrorFromStatus(const Status& status);

// An error raised after conversion.
ApiError ServeError(int status, std::string type, std::string code, std::string message);

// Builders for the rows of the table that several places raise.
ApiError InvalidJsonError(std::string message);
ApiError ModelNotFoundError(std::string_view model, const std::string& served_names);
// field: of the body, which holds the prompt.
ApiError ContextLengthError(std::string_view field, int64_t num_prompt_tokens,
                            int64_t num_context_tokens);
// 503 `server_overloaded` and `queue_timeout`, with Retry-After.
ApiError OverloadedError(std::string message);
ApiError QueueTimeoutError();
// 402 of a key that has spent its budget.
ApiError InsufficientBalanceError();
// 500 of a request that took its workers down: nobody shall send it again.
ApiError QuarantinedError();

}  // namespace deepinfer
