// POST /profile: the next steps of a worker as a Chrome trace (api.md §2).
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/json_body.h"
#include "server/profile_trace.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {
namespace {

constexpr int32_t kDefaultSteps = 10;
constexpr int64_t kDefaultTimeoutS = 10;
constexpr int64_t kLongestTimeoutS = 60;
constexpr int64_t kMostWorkers = 1 << 16;

struct ProfileBody {
  int32_t num_steps = kDefaultSteps;
  int64_t timeout_s = kDefaultTimeoutS;
  size_t worker = 0;
};

ApiResult<ProfileBody> ReadProfileBody(std::string_view text) {
  ApiResult<JsonDocument> document = ParseJsonBody(text.empty() ? "{}" : text);
  if (!document) return tl::unexpected(std::move(document.error()));
  ReadState read;
  read.document = &*document;
  ObjectReader reader(&read, document->root(), "");
  ProfileBody body;
  body.num_steps = static_cast<int32_t>(
      reader.Integer("num_steps", 1, kMaxProfileSteps).value_or(kDefaultSteps));
  body.timeout_s = reader.Integer("timeout_s", 1, kLongestTimeoutS).value_or(kDefaultTimeoutS);
  body.worker = static_cast<size_t>(reader.Integer("worker", 0, kMostWorkers).value_or(0));
  if (read.error) return tl::unexpected(std::move(*read.error));
  return body;
}

}  // namespace

void HandleProfile(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const ApiResult<ProfileBody> body = ReadProfileBody(exchange->request().body);
  if (!body) return RespondError(*exchange, body.error());
  const auto model = state.model();
  state.generations.Add();
  // The worker's thread hands over; writing the text is not its business.
  const auto done = [&state, exchange](std::vector<StepTrace> steps) {
    std::make_shared<SerialQueue>(&state.stream_pool)
        ->Post([&state, exchange, taken = std::move(steps)] {
          HttpResponse response;
          response.body = ChromeTrace(taken);
          exchange->Respond(std::move(response));
          state.generations.Remove();
        });
  };
  const int64_t deadline_us = SteadyClock().NowUs() + body->timeout_s * 1'000'000;
  const Status status =
      model->context.gateway->Profile(body->worker, body->num_steps, deadline_us, done);
  if (status.ok()) return;
  state.generations.Remove();
  RespondError(*exchange, ApiErrorFromStatus(status));
}

}  // namespace deepinfer
