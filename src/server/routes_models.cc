// GET /v1/models and /v1/models/{id}, in the OpenAI or the Anthropic form (api.md §2, §10).
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <utility>

#include "base/json_writer.h"
#include "server/api_error.h"
#include "server/error_response.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {
namespace {

bool WantsAnthropic(const HttpRequest& request) {
  return !request.Header("anthropic-version").empty();
}

// Served names first, then aliases.
std::vector<std::string> AllNames(const ServerState& state) {
  std::vector<std::string> names = state.options.served_model_names;
  for (const auto& [alias, target] : state.options.model_aliases) names.push_back(alias);
  return names;
}

void WriteModel(const ServedModel& model, std::string_view name, JsonWriter& json) {
  json.BeginObject().Field("id", name).Field("object", "model");
  json.Field("created", model.context.card.created_s).Field("owned_by", "deepinfer");
  json.Field("max_model_len", int64_t{model.context.gateway->info().max_model_len}).EndObject();
}

void WriteAnthropicModel(const ServerState& state, const ServedModel& model, std::string_view name,
                         JsonWriter& json) {
  const int64_t context = model.context.gateway->info().max_model_len;
  const int64_t output = state.options.chat.max_tokens_limit_thinking;
  json.BeginObject().Field("type", "model").Field("id", name).Field("display_name", name);
  json.Field("created_at",
             fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                         fmt::gmtime(static_cast<std::time_t>(model.context.card.created_s))));
  json.Field("max_input_tokens", context).Field("max_tokens", std::min(output, context));
  json.Key("capabilities").BeginObject();
  json.Key("image_input").BeginObject().Key("supported").Bool(model.context.card.vision);
  json.EndObject().Key("thinking").BeginObject().Key("supported").Bool(true).EndObject();
  json.EndObject().EndObject();
}

}  // namespace

void HandleModels(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const std::vector<std::string> names = AllNames(state);
  const bool anthropic = WantsAnthropic(exchange->request());
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject();
  if (!anthropic) json.Field("object", "list");
  json.Key("data").BeginArray();
  for (const std::string& name : names) {
    if (anthropic) {
      WriteAnthropicModel(state, *model, name, json);
    } else {
      WriteModel(*model, name, json);
    }
  }
  json.EndArray();
  if (anthropic) {
    json.Key("has_more").Bool(false);
    json.Field("first_id", names.front()).Field("last_id", names.back());
  }
  json.EndObject();
  exchange->Respond(std::move(response));
}

void HandleModel(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const std::string name = RouteSuffix(exchange->request());
  if (!state.Serves(name)) {
    return RespondError(*exchange, ModelNotFoundError(name, model->chat.served_models));
  }
  HttpResponse response;
  JsonWriter json(&response.body);
  if (WantsAnthropic(exchange->request())) {
    WriteAnthropicModel(state, *model, name, json);
  } else {
    WriteModel(*model, name, json);
  }
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
