// GET /version, /metrics and /openapi.json (api.md §15, §16).
#include <chrono>
#include <utility>

#include "base/json_writer.h"
#include "base/utc_clock.h"
#include "base/version.h"
#include "server/openapi.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {
namespace {

AccountTotals TotalsOf(const ServerState& state) {
  AccountTotals totals;
  totals.ledger_dropped = state.account.num_dropped_lines();
  if (state.traces) {
    totals.traces_exported = state.traces->num_exported();
    totals.traces_dropped = state.traces->num_dropped();
  }
  // Exact sums become floating point only here, where the format asks for it.
  const auto show = [](const auto& sums, std::array<double, 4>* dollars) {
    for (size_t i = 0; i < dollars->size(); ++i) {
      (*dollars)[i] = static_cast<double>((*sums)[i]) * 1e-12;
    }
  };
  const auto earned = state.account.earned();
  if (earned && state.options.price_book->currency() == "USD") show(earned, &totals.earned_usd);
  const auto spent = state.account.spent();
  if (spent && state.options.cost_book->currency() == "USD") show(spent, &totals.spent_usd);
  return totals;
}

// What tokens cost now, in pico-units per token.
void WritePrices(const PriceBook& book, JsonWriter* json) {
  const PriceWindow window = book.WindowAt(UtcNow<std::chrono::microseconds>());
  const TokenPrices& prices = book.PricesOf(window);
  json->Key("price_book").BeginObject().Field("id", book.id());
  json->Field("currency", book.currency()).Field("window", PriceWindowName(window));
  json->Field("hit", prices.hit).Field("miss", prices.miss).Field("output", prices.output);
  json->Field("cache_write", prices.cache_write).EndObject();
}

}  // namespace

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
  if (state.options.price_book) WritePrices(*state.options.price_book, &json);
  json.Key("roles").BeginArray().String("all").EndArray().EndObject();
  exchange->Respond(std::move(response));
}

void HandleMetrics(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  std::vector<EngineStatistics> engines;
  std::vector<StoreStatistics> stores;
  GatewayCounters gateway;
  if (model) {
    engines = model->context.gateway->Statistics();
    stores = model->context.gateway->Stores();
    gateway = model->context.gateway->counters();
  }
  response.body = state.metrics.Serialize(engines, stores, TotalsOf(state), gateway);
  exchange->Respond(std::move(response));
}

void HandleOpenApi(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  HttpResponse response;
  response.body = OpenApiDocument();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
