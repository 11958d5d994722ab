// GET /user/balance: what is left of the budget of a key (api.md §2).
#include "base/json_writer.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {

void HandleBalance(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const ApiKey* const key = exchange->request().key;
  const std::optional<PicoSum> balance =
      key == nullptr ? std::nullopt : state.budgets->Balance(key->name);
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Key("is_available").Bool(!balance || *balance > 0);
  json.Key("balance_infos").BeginArray();
  if (balance) {
    const std::string left = FormatMoney(std::max<PicoSum>(*balance, 0));
    json.BeginObject().Field("currency", state.options.price_book->currency());
    json.Field("total_balance", left).Field("granted_balance", FormatMoney(0));
    json.Field("topped_up_balance", left).EndObject();
  }
  json.EndArray().EndObject();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
