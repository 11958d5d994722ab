#include "server/server_handler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "server/error_response.h"
#include "server/request_record.h"
#include "server/routes_health.h"

namespace deepinfer {
namespace {

// Clients do not honour longer waits.
constexpr double kMostRetryS = 60;

HttpResponse Refuse(const HttpRequest& request, const ApiError& error) {
  NoteError(request, error.code);
  return ErrorResponse(request, error);
}

// A path as error messages repeat it: readable and bounded.
std::string Shown(const std::string& path) {
  constexpr size_t kMaxShown = 200;
  return ReplaceInvalidUtf8(path.substr(0, kMaxShown));
}

// The secret of "Authorization: Bearer" or x-api-key.
std::string_view SecretOf(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.Header("Authorization");
  const bool bearer =
      authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), [](char want, char c) {
        return want == (c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
      });
  return bearer ? authorization.substr(kBearer.size()) : request.Header("x-api-key");
}

// Concurrency of a key is counted from admission to the end of the answer.
bool TakeKeySlot(const ApiKey& key) {
  const int32_t running = key.running_requests.fetch_add(1, std::memory_order_acq_rel);
  if (key.max_concurrent_requests == 0 || running < key.max_concurrent_requests) return true;
  key.running_requests.fetch_sub(1, std::memory_order_acq_rel);
  return false;
}

// x-ratelimit-* of one kind (api.md §14); nothing without a limit.
void AddRateHeaders(std::string_view kind, const RateLimit::Answer& rate,
                    std::vector<HttpHeader>* headers) {
  if (rate.limit == 0) return;
  headers->push_back({fmt::format("x-ratelimit-limit-{}", kind), std::to_string(rate.limit)});
  headers->push_back(
      {fmt::format("x-ratelimit-remaining-{}", kind), std::to_string(rate.remaining)});
  headers->push_back(
      {fmt::format("x-ratelimit-reset-{}", kind), fmt::format("{:.3f}s", rate.reset_s)});
}

void LogRequest(const RequestFacts& facts) {
  const auto millis = [](int64_t us) { return static_cast<double>(us) / 1000.0; };
  const double e2e_ms = std::chrono::duration<double, std::milli>(facts.outcome.duration).count();
  const bool is_notable = facts.generated || (facts.outcome.status >= 400 && !facts.is_probe);
  const LogLevel level = is_notable ? LogLevel::kInfo : LogLevel::kDebug;
  Log(level, "request",
      {{"request_id", facts.request_id},
       {"attempt_id", facts.attempt_id},
       {"route", facts.route},
       {"key_name", facts.key_name},
       {"status", facts.cancelled ? 499 : facts.outcome.status},
       {"model", facts.model},
       {"prompt_tokens", facts.prompt_tokens},
       {"cached_tokens", facts.cached_tokens},
       {"disk_tokens", facts.disk_tokens},
       {"cache_miss", facts.cache_miss},
       {"computed_tokens", facts.computed_tokens},
       {"completion_tokens", facts.completion_tokens},
       {"queue_ms", millis(facts.queue_us)},
       {"ttft_ms", facts.ttft_us < 0 ? -1.0 : millis(facts.ttft_us)},
       {"e2e_ms", e2e_ms},
       {"finish_reason", facts.finish_reason},
       {"error_code", facts.error_code},
       {"client_retry", facts.client_retry}});
}

// What the ledger says about a request beside its tokens (economics.md §3).
void NoteAccount(const ServerState& state, HttpRequest& request) {
  constexpr size_t kMostLabel = 256;
  const auto label = [&](std::string_view name) {
    return std::string(request.Header(name).substr(0, kMostLabel));
  };
  std::string work = label("Idempotency-Key");
  if (work.empty() && request.Header("X-Request-Id") == request.request_id) {
    work = request.request_id;
  }
  std::string session = label("x-deepseek-harness-session-id");
  if (session.empty()) session = label("X-Correlation-ID");
  TraceContext trace = ParseTraceparent(request.Header("traceparent"));
  if (!trace.trace_id.empty()) trace.state = CheckTracestate(request.Header("tracestate"));
  if (state.traces && trace.sampled) {
    BeginSpan(&trace);
    request.answer_headers.push_back({"traceparent", FormatTraceparent(trace)});
  }
  request.record->Update([&](RequestFacts& facts) {
    facts.is_accounted = true;
    facts.work_label = std::move(work);
    facts.session_label = std::move(session);
    facts.trace = std::move(trace);
  });
}

// Retries are recognised by their bodies where the client gives them no name.
void NoteBody(const ServerState& state, const HttpRequest& request) {
  if (!state.account.wants_body_hash()) return;
  bool is_wanted = false;
  request.record->Update([&](const RequestFacts& facts) {
    is_wanted = facts.is_accounted && facts.work_label.empty();
  });
  if (!is_wanted) return;
  std::string hash = Sha256Hex(request.body);
  request.record->Update([&](RequestFacts& facts) { facts.body_hash = std::move(hash); });
}

// Only where the operator asked for it: it holds what people wrote.
void LogBody(const ServerState& state, const HttpRequest& request) {
  if (state.options.log_requests != LogRequests::kFull || !request.route->generates) return;
  Log(LogLevel::kInfo, "request.body",
      {{"request_id", request.request_id}, {"body", ReplaceInvalidUtf8(request.body)}});
}

// Out of memory for one request must not end the others.
void RunHandler(ServerState& state, const Route& route,
                const std::shared_ptr<HttpExchange>& exchange) {
  try {
    NoteBody(state, exchange->request());
    LogBody(state, exchange->request());
    route.handle(state, exchange);
  } catch (const std::exception& exception) {
    Log(LogLevel::kError, "request.exception",
        {{"request_id", exchange->request().request_id}, {"what", exception.what()}});
    RespondError(*exchange, ApiErrorFromStatus(Internal(exception.what())));
  }
}

}  // namespace

std::optional<HttpResponse> ServerHandler::Admit(HttpRequest& request) {
  RouteMatch match = MatchRoute(request.method, request.path);
  // Without its flag it is as unknown as any other path.
  const bool needs_flag = match.route != nullptr && match.route->flag != nullptr;
  if (needs_flag && !(state_->options.*match.route->flag)) match = {};
  ServerState* const state = state_;
  request.record = std::make_shared<RequestRecord>([state](const RequestFacts& facts) {
    state->metrics.OnRequest(facts);
    const auto model = state->model();
    state->account.Record(facts, model == nullptr ? nullptr : &model->context.card);
    if (state->traces) state->traces->Record(facts);
    if (state->options.log_requests != LogRequests::kOff) LogRequest(facts);
  });
  request.route = match.route;
  request.hosted_status_codes = state_->options.hosted_status_codes;
  request.record->Update([&](RequestFacts& facts) {
    facts.request_id = request.request_id;
    facts.method = request.method;
    facts.received = request.received;
    facts.route = match.route == nullptr ? "unknown" : std::string(match.route->name);
    facts.is_probe = match.route != nullptr && !match.route->needs_key;
    facts.client_retry = request.Header("x-stainless-retry-count").substr(0, 16);
  });
  AddCorsHeaders(request);
  if (auto answer = Preflight(request, match)) return answer;
  if (match.route == nullptr && !match.allow.empty()) {
    HttpResponse response = Refuse(
        request,
        ServeError(405, "invalid_request_error", "method_not_allowed",
                   "Method " + request.method + " is not allowed on " + Shown(request.path)));
    response.headers.push_back({"Allow", match.allow});
    return response;
  }
  if (match.route == nullptr) {
    return Refuse(
        request,
        ServeError(404, "invalid_request_error",
                   match.known_elsewhere ? "unsupported_endpoint" : "unknown_url",
                   match.known_elsewhere ? "This server does not serve " + Shown(request.path)
                                         : "Unknown URL " + Shown(request.path)));
  }
  if (auto refusal = CheckKey(request)) return refusal;
  if (match.route->generates) NoteAccount(*state_, request);
  if (auto refusal = CheckState(request)) return refusal;
  if (request.key != nullptr && match.route->generates) return CheckLimits(request);
  return std::nullopt;
}

void ServerHandler::AddCorsHeaders(HttpRequest& request) const {
  const CorsOptions& cors = state_->options.cors;
  const std::string_view origin = request.Header("Origin");
  if (origin.empty() || cors.allowed_origins.empty()) return;
  request.answer_headers.push_back({"Vary", "Origin"});
  const auto& allowed = cors.allowed_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return;
  // With credentials the wildcard is not allowed, so the origin itself is named.
  const bool star = any && !cors.allow_credentials;
  request.answer_headers.push_back(
      {"Access-Control-Allow-Origin", star ? std::string("*") : std::string(origin)});
  request.answer_headers.push_back(
      {"Access-Control-Expose-Headers", "X-Request-Id, request-id, retry-after"});
  if (cors.allow_credentials) {
    request.answer_headers.push_back({"Access-Control-Allow-Credentials", "true"});
  }
}

std::optional<HttpResponse> ServerHandler::Preflight(const HttpRequest& request,
                                                     const RouteMatch& match) const {
  const bool known = match.route != nullptr || !match.allow.empty();
  const bool allowed = std::any_of(
      request.answer_headers.begin(), request.answer_headers.end(),
      [](const HttpHeader& header) { return header.name == "Access-Control-Allow-Origin"; });
  if (request.method != "OPTIONS" || !known || !allowed) return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  const CorsOptions& cors = state_->options.cors;
  response.headers.push_back({"Access-Control-Allow-Methods", cors.allowed_methods});
  response.headers.push_back({"Access-Control-Allow-Headers", cors.allowed_headers});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

std::optional<HttpResponse> ServerHandler::CheckKey(HttpRequest& request) {
  if (state_->keys.empty()) return std::nullopt;
  request.key = state_->keys.Find(SecretOf(request));
  if (request.key != nullptr) {
    request.record->Update([&](RequestFacts& facts) { facts.key_name = request.key->name; });
    if (!request.route->needs_admin || request.key->admin) return std::nullopt;
    return Refuse(request, ServeError(403, "permission_error", "permission_denied",
                                      "This route needs the key of an admin"));
  }
  if (!request.route->needs_key) return std::nullopt;
  return Refuse(request, ServeError(401, "authentication_error", "invalid_api_key",
                                    SecretOf(request).empty() ? "No API key was given"
                                                              : "The API key is not valid"));
}

std::optional<HttpResponse> ServerHandler::CheckLimits(HttpRequest& request) {
  const auto refuse = [&](const char* message, double wait_s) {
    request.record->ReleaseKey();
    ApiError error = ServeError(429, "rate_limit_error", "rate_limit_exceeded", message);
    error.retry_after_s = static_cast<int32_t>(std::clamp(std::ceil(wait_s), 1.0, kMostRetryS));
    return Refuse(request, error);
  };
  const ApiKey& key = *request.key;
  const std::optional<PicoSum> balance = state_->budgets->Balance(key.name);
  if (balance && *balance <= 0) return Refuse(request, InsufficientBalanceError());
  if (!TakeKeySlot(key)) return refuse("Too many requests of this key are running", 1);
  request.record->HoldKey(&key);
  // Tokens are charged when they are known; a request starts while there is any left.
  const RateLimit::Answer tokens = key.token_rate.Take(0, request.received);
  AddRateHeaders("tokens", tokens, &request.answer_headers);
  if (!tokens.allowed) {
    return refuse("This key has used up its tokens of this minute", tokens.wait_s);
  }
  const RateLimit::Answer requests = key.request_rate.Take(1, request.received);
  AddRateHeaders("requests", requests, &request.answer_headers);
  if (!requests.allowed) {
    return refuse("This key has used up its requests of this minute", requests.wait_s);
  }
  return std::nullopt;
}

std::optional<HttpResponse> ServerHandler::CheckState(const HttpRequest& request) {
  const Route& route = *request.route;
  if (!route.needs_model) return std::nullopt;
  const std::optional<ApiError> error = state_->Unavailability();
  // Routes that only read the model go on while the server drains.
  if (!error || (!route.generates && state_->model() != nullptr)) return std::nullopt;
  NoteError(request, error->code);
  return UnavailableResponse(*state_, request, *error);
}

void ServerHandler::Handle(std::shared_ptr<HttpExchange> exchange) {
  const Route& route = *exchange->request().route;
  exchange->request().record->Update(
      [&](RequestFacts& facts) { facts.request_bytes = exchange->request().body.size(); });
  if (route.pool == RoutePool::kInline) {
    route.handle(*state_, exchange);
    return;
  }
  WorkPool& pool = route.pool == RoutePool::kPrepare ? state_->prepare_pool : state_->tokenize_pool;
  const bool posted = pool.TryPost([state = state_, exchange, &route] {
    // A client that left while its request waited costs nothing.
    const CpuCharge charge(exchange->request().record);
    if (charge.joined() && !exchange->disconnected()) RunHandler(*state, route, exchange);
  });
  if (!posted) RespondError(*exchange, OverloadedError("Too many requests are waiting"));
}

void ServerHandler::Done(const HttpRequest& request, const HttpOutcome& outcome) {
  request.record->Update([&](RequestFacts& facts) { facts.outcome = outcome; });
  request.record->Leave();
}

void ServerHandler::OnLoopDelay(std::chrono::nanoseconds delay) {
  state_->metrics.OnLoopDelay(delay);
}

HttpResponse ServerHandler::Error(const HttpRequest& request, int status, std::string_view code,
                                  std::string_view message) {
  state_->metrics.OnError(code);
  return ErrorResponse(request,
                       ServeError(status, status >= 500 ? "server_error" : "invalid_request_error",
                                  std::string(code), std::string(message)));
}

}  // namespace deepinfer
