// GET /debug/prefix/{request_id}: where the prompt of a request parts from those before it, and
// what of it was found in the cache (api.md §2).
#include <algorithm>
#include <utility>

#include "base/json_writer.h"
#include "model/kv_layout.h"
#include "server/error_response.h"
#include "server/routes.h"
#include "server/server_state.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

// Tokens shown on both sides of the first one that differs.
constexpr int64_t kContextTokens = 16;

// Member `key`: the token at `index` and what stands around it; null at the end of the prompt.
void WriteSide(std::string_view key, const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
               int64_t index, JsonWriter* json) {
  const auto size = static_cast<int64_t>(ids.size());
  const auto text = [&](int64_t begin, int64_t end) {
    begin = std::clamp<int64_t>(begin, 0, size);
    end = std::clamp<int64_t>(end, begin, size);
    return tokenizer.Decode(
        std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  };
  json->Key(key);
  if (index >= size) {
    json->Null();
    return;
  }
  json->BeginObject().Field("token_id", int64_t{ids[static_cast<size_t>(index)]});
  json->Field("text", text(index, index + 1));
  json->Field("before", text(index - kContextTokens, index));
  json->Field("behind", text(index + 1, index + 1 + kContextTokens)).EndObject();
}

void WriteBlocks(const PrefixReport& report, JsonWriter* json) {
  const auto size = static_cast<int64_t>(report.prompt_ids.size());
  json->Key("blocks").BeginArray();
  for (int64_t begin = 0; begin < size; begin += kBlockTokens) {
    const int64_t end = std::min<int64_t>(begin + kBlockTokens, size);
    // State of replayed rows was rebuilt from blocks that were found.
    const int64_t known = report.cached_tokens + report.replayed_tokens;
    json->BeginObject().Field("first_token", begin).Field("num_tokens", end - begin);
    json->Key("shared").Bool(end <= report.num_common);
    json->Key("found").Bool(report.cached_tokens >= 0 && end <= known).EndObject();
  }
  json->EndArray();
}

}  // namespace

void HandleDebugPrefix(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const std::string id = RouteSuffix(exchange->request());
  const std::optional<PrefixReport> report = state.prefixes.Report(id);
  if (!report) {
    return RespondError(*exchange, ServeError(404, "invalid_request_error", "not_found",
                                              "No prompt of this request is kept"));
  }
  const Tokenizer& tokenizer = *state.model()->context.tokenizer;
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Field("request_id", id);
  json.Field("prompt_tokens", static_cast<int64_t>(report->prompt_ids.size()));
  json.Field("cached_tokens", report->cached_tokens);
  json.Field("replayed_tokens", report->replayed_tokens);
  json.Key("nearest");
  if (report->nearest_request_id.empty()) {
    json.Null();
  } else {
    json.BeginObject().Field("request_id", report->nearest_request_id);
    json.Field("num_common_tokens", report->num_common);
    json.Key("first_difference").BeginObject().Field("index", report->num_common);
    WriteSide("here", tokenizer, report->prompt_ids, report->num_common, &json);
    WriteSide("there", tokenizer, report->nearest_ids, report->num_common, &json);
    json.EndObject().EndObject();
  }
  WriteBlocks(*report, &json);
  json.EndObject();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
