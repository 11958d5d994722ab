#include "server/error_response.h"

#include <utility>

#include "server/request_record.h"
#include "server/routes.h"

namespace deepinfer {

HttpResponse ErrorResponse(const HttpRequest& request, const ApiError& error) {
  const bool is_anthropic = SpeaksAnthropic(request);
  HttpResponse response;
  response.status = is_anthropic ? AnthropicHttpStatus(error) : error.status;
  // The hosted API tells what it cannot read (400) from values that it refuses.
  if (request.hosted_status_codes && !is_anthropic && error.status == 400 &&
      error.stage == ErrorStage::kConvert) {
    response.status = 422;
  }
  response.body =
      is_anthropic ? AnthropicErrorBody(error, request.request_id) : OpenAiErrorBody(error);
  if (error.retry_after_s >= 0) {
    response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
    response.headers.push_back({"retry-after-ms", std::to_string(error.retry_after_s) + "000"});
  }
  if (error.retry_is_vain) response.headers.push_back({"x-should-retry", "false"});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

void NoteError(const HttpRequest& request, std::string_view code) {
  if (request.record) {
    request.record->Update([&](RequestFacts& facts) { facts.error_code = code; });
  }
}

void RespondError(HttpExchange& exchange, const ApiError& error) {
  NoteError(exchange.request(), error.code);
  if (exchange.request().record) exchange.request().record->ReleaseKey();
  exchange.Respond(ErrorResponse(exchange.request(), error));
}

ApiError UnsupportedParameterError(std::string param, std::string message) {
  ApiError error;
  error.code = "unsupported_parameter";
  error.param = std::move(param);
  error.message = std::move(message);
  return error;
}

}  // namespace deepinfer
