#include "server/api_error.h"

#include <fmt/format.h>

#include "text/python_json.h"

namespace deepinfer {
namespace {

constexpr int kOverloadedAnthropic = 529;
constexpr int32_t kOverloadedRetryAfterS = 5;

std::string_view AnthropicType(const ApiError& error) {
  switch (error.status) {
    case 400:
    case 405:
    case 422:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 402:
      return "billing_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "api_error";
  }
}

}  // namespace

std::string_view ErrorStageName(ErrorStage stage) {
  switch (stage) {
    case ErrorStage::kParse:
      return "parse";
    case ErrorStage::kConvert:
      return "convert";
    case ErrorStage::kServe:
      return "serve";
  }
  return "serve";
}

std::string OpenAiErrorBody(const ApiError& error) {
  std::string body = "{\"error\":{\"message\":";
  WriteJsonString(error.message, &body);
  body += ",\"type\":";
  WriteJsonString(error.type, &body);
  body += ",\"param\":";
  if (error.param) {
    WriteJsonString(*error.param, &body);
  } else {
    body += "null";
  }
  body += ",\"code\":";
  WriteJsonString(error.code, &body);
  if (error.num_prompt_tokens >= 0) {
    body += fmt::format(",\"n_prompt_tokens\":{},\"n_ctx\":{}", error.num_prompt_tokens,
                        error.num_context_tokens);
  }
  body += "}}";
  return body;
}

std::string AnthropicErrorBody(const ApiError& error, std::string_view request_id) {
  std::string body = "{\"type\":\"error\",\"error\":{\"type\":";
  WriteJsonString(AnthropicType(error), &body);
  body += ",\"message\":";
  WriteJsonString(error.message, &body);
  body += "},\"request_id\":";
  WriteJsonString(request_id, &body);
  body += '}';
  return body;
}

int AnthropicHttpStatus(const ApiError& error) {
  return error.status == 503 ? kOverloadedAnthropic : error.status;
}

ApiError ApiErrorFromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidRequest:
      return ServeError(400, "invalid_request_error", "invalid_value", status.message());
    case StatusCode::kUnsupported:
      return ServeError(400, "invalid_request_error", "unsupported_parameter", status.message());
    case StatusCode::kNotFound:
      return ServeError(404, "invalid_request_error", "not_found", status.message());
    case StatusCode::kResourceExhausted: {
      ApiError error = ServeError(429, "rate_limit_error", "rate_limit_exceeded", status.message());
      error.retry_after_s = 1;
      return error;
    }
    case StatusCode::kDeadline:
      return ServeError(504, "timeout_error", "deadline_exceeded", status.message());
    case StatusCode::kCancelled:
      return ServeError(499, "cancelled_error", "cancelled", status.message());
    case StatusCode::kUnavailable:
      return OverloadedError(status.message());
    case StatusCode::kOk:
    case StatusCode::kDataCorruption:
    case StatusCode::kInternal:
      break;
  }
  // No internals in what a client sees.
  return ServeError(500, "server_error", "server_error",
                    "The server had an error while processing the request.");
}

ApiError ServeError(int status, std::string type, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.stage = ErrorStage::kServe;
  error.type = std::move(type);
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError InvalidJsonError(std::string message) {
  ApiError error;
  error.stage = ErrorStage::kParse;
  error.message = std::move(message);
  error.code = "invalid_json";
  return error;
}

ApiError ModelNotFoundError(std::string_view model, const std::string& served_names) {
  ApiError error;
  error.status = 404;
  error.message =
      fmt::format("The supported API model names are {}, but you passed {}.", served_names, model);
  error.code = "model_not_found";
  error.param = "model";
  return error;
}

ApiError ContextLengthError(std::string_view field, int64_t num_prompt_tokens,
                            int64_t num_context_tokens) {
  ApiError error;
  error.stage = ErrorStage::kServe;
  error.message =
      fmt::format("This model's maximum context length is {} tokens, but the prompt has {} tokens.",
                  num_context_tokens, num_prompt_tokens);
  error.code = "context_length_exceeded";
  error.param = std::string(field);
  error.num_prompt_tokens = num_prompt_tokens;
  error.num_context_tokens = num_context_tokens;
  return error;
}

ApiError OverloadedError(std::string message) {
  ApiError error = ServeError(503, "server_error", "server_overloaded", std::move(message));
  error.retry_after_s = kOverloadedRetryAfterS;
  return error;
}

ApiError InsufficientBalanceError() {
  ApiError error =
      ServeError(402, "billing_error", "insufficient_balance", "This API key has spent its budget");
  error.retry_is_vain = true;
  return error;
}

ApiError QuarantinedError() {
  ApiError error = ServeError(500, "server_error", "request_quarantined",
                              "Several workers were lost while they ran this request");
  error.retry_is_vain = true;
  return error;
}

ApiError QueueTimeoutError() {
  ApiError error = OverloadedError("The request waited too long for its turn");
  error.code = "queue_timeout";
  return error;
}

}  // namespace deepinfer
