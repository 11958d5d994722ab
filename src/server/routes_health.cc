#include "server/routes_health.h"

#include <chrono>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/json_writer.h"
#include "server/error_response.h"
#include "server/request_id.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {
namespace {

constexpr std::chrono::seconds kProbeInterval{10};
constexpr int64_t kProbeDeadlineUs = 10'000'000;
constexpr std::string_view kRetryAfterS = "5";

void WriteProgress(const ServerState& state, JsonWriter& json) {
  if (state.progress == nullptr) return;
  json.Field("phase", LoadPhaseName(state.progress->phase()));
  json.Field("done", static_cast<int64_t>(state.progress->done()));
  json.Field("total", static_cast<int64_t>(state.progress->total()));
}

HttpResponse Ok() {
  HttpResponse response;
  response.body = R"({"status":"ok"})";
  return response;
}

// The body of the health routes: a numeric code, as probes of other servers expect.
HttpResponse HealthError(const ServerState& state, std::string_view message) {
  HttpResponse response;
  response.status = 503;
  response.headers.push_back({"Retry-After", std::string(kRetryAfterS)});
  JsonWriter json(&response.body);
  json.BeginObject().Key("error").BeginObject();
  json.Field("code", int64_t{503}).Field("type", "unavailable_error").Field("message", message);
  json.EndObject();
  WriteProgress(state, json);
  json.EndObject();
  return response;
}

// 503 while the engine does not come back from a step; nothing otherwise.
std::optional<HttpResponse> StalledResponse(const ServerState& state) {
  if (!state.stalled()) return std::nullopt;
  return HealthError(state, "The engine does not finish its step");
}

}  // namespace

HttpResponse UnavailableResponse(const ServerState& state, const HttpRequest& request,
                                 const ApiError& error) {
  HttpResponse response = ErrorResponse(request, error);
  if (state.model() != nullptr || state.progress == nullptr) return response;
  // The members go behind "error", in the same object.
  response.body.pop_back();
  response.body += ',';
  std::string members;
  JsonWriter json(&members);
  json.BeginObject();
  WriteProgress(state, json);
  json.EndObject();
  response.body.append(members, 1);
  return response;
}

void HandleLive(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  exchange->Respond(Ok());
}

void HandleHealth(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  if (auto stalled = StalledResponse(state)) return exchange->Respond(*std::move(stalled));
  const std::optional<ApiError> error = state.Unavailability();
  // A draining server still serves what it has: only /ready says no. The model may arrive between
  // the two looks at the state.
  const bool serves = state.model() != nullptr && !state.failed.load(std::memory_order_acquire);
  exchange->Respond(error && !serves ? HealthError(state, error->message) : Ok());
}

void HandleReady(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  if (auto stalled = StalledResponse(state)) return exchange->Respond(*std::move(stalled));
  if (const std::optional<ApiError> error = state.Unavailability()) {
    return exchange->Respond(HealthError(state, error->message));
  }
  const std::string_view reason = state.model()->context.gateway->WhyNotReady();
  exchange->Respond(reason.empty() ? Ok() : HealthError(state, reason));
}

void HandleHealthGenerate(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  if (const auto error = state.Unavailability()) {
    exchange->Respond(HealthError(state, error->message));
    return;
  }
  const auto answer = [&state, exchange](bool ok) {
    exchange->Respond(ok ? Ok() : HealthError(state, "The one-token run failed"));
  };
  GenerateProbe& probe = state.probe;
  std::optional<bool> known;
  {
    std::lock_guard lock(probe.mutex);
    const auto now = std::chrono::steady_clock::now();
    if (!probe.running && probe.has_result && now - probe.finished < kProbeInterval) {
      known = probe.ok;
    } else {
      probe.waiters.push_back(answer);
      if (std::exchange(probe.running, true)) return;
    }
  }
  if (known) {
    answer(*known);
    return;
  }
  const auto finish = [&state](bool ok) {
    std::vector<std::function<void(bool)>> waiters;
    {
      std::lock_guard lock(state.probe.mutex);
      state.probe.running = false;
      state.probe.has_result = true;
      state.probe.ok = ok;
      state.probe.finished = std::chrono::steady_clock::now();
      waiters.swap(state.probe.waiters);
    }
    for (const auto& waiter : waiters) waiter(ok);
    state.generations.Remove();
  };
  state.generations.Add();
  const auto model = state.model();
  EngineRequest request;
  request.request_id = MakeRandomId("probe-");
  request.prompt_ids = {model->context.special.bos};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.deadline_us = SteadyClock().NowUs() + kProbeDeadlineUs;
  const Status status =
      model->context.gateway->Submit(std::move(request), [&state, finish](const TokenEvent& event) {
        if (event.finish == FinishReason::kNone) return;
        const RequestCounters& used = event.counters;
        state.probe.device_ns.fetch_add(used.prefill_device_ns + used.decode_device_ns,
                                        std::memory_order_relaxed);
        finish(event.finish == FinishReason::kLength || event.finish == FinishReason::kStop);
      });
  if (!status.ok()) finish(false);
}

}  // namespace deepinfer
