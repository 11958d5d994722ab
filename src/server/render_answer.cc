#include "server/render_answer.h"

#include <utility>

#include "model/kv_layout.h"
#include "text/prompt_encoder.h"

namespace deepinfer {

void WriteRendered(const ServedModel& model, const KvScope& scope, std::string_view prompt,
                   std::span<const int32_t> ids, JsonWriter* json) {
  json->BeginObject().Field("prompt", prompt).Key("token_ids").BeginArray();
  for (const int32_t id : ids) json->Int(id);
  json->EndArray().Field("num_tokens", static_cast<int64_t>(ids.size()));
  json->Key("image_spans").BeginArray().EndArray().Key("block_keys").BeginArray();
  if (const auto& name = model.context.gateway->info().kv_namespace) {
    KeyOrigin origin;
    origin.namespace_id = *name;
    origin.scope = scope;
    origin.block_tokens = kBlockTokens;
    for (const BlockKey& key : ComputeBlockKeys(origin, ids, {})) json->String(key.Hex());
  }
  json->EndArray().EndObject();
}

void RespondRendered(const ServedModel& model, const PreparedChat& prepared,
                     HttpExchange* exchange) {
  HttpResponse response;
  JsonWriter json(&response.body);
  WriteRendered(model, prepared.cache_scope, BuildPromptText(prepared.segments).prompt,
                prepared.prompt_ids, &json);
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
