// GET /version, /metrics and /openapi.json (api.md §15, §16).
#include <utility>

#include "base/json_writer.h"
#include "base/version.h"
#include "server/openapi.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {

void HandleVersion(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Field("version", kVersion).Field("commit", state.options.build_commit);
  json.Field("config_hash", state.options.config_hash);
  json.Field("model_name", state.options.served_model_names.front());
  if (model) {
    json.Field("model_revision", model->context.card.revision);
    json.Field("weights_hash", model->context.card.weights_hash);
    json.Field("tokenizer_hash", model->context.card.tokenizer_hash);
    json.Field("numerics", model->context.gateway->info().numerics_id);
  }
  json.Field("sampling_policy",
             state.options.chat.sampling_policy == SamplingPolicy::kHonour ? "honour" : "deepseek");
  json.Key("roles").BeginArray().String("all").EndArray().EndObject();
  exchange->Respond(std::move(response));
}

void HandleMetrics(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  std::vector<EngineStatistics> engines;
  std::vector<StoreStatistics> stores;
  if (model) {
    engines = model->context.gateway->Statistics();
    stores = model->context.gateway->Stores();
  }
  response.body = state.metrics.Serialize(engines, stores);
  exchange->Respond(std::move(response));
}

void HandleOpenApi(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  HttpResponse response;
  response.body = OpenApiDocument();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
