// POST /tokenize, POST /detokenize, GET /tokenizer_info (api.md §8).
#include <boost/json.hpp>
#include <utility>

#include "base/json_writer.h"
#include "server/completions_request.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/json_body.h"
#include "server/prepare_chat.h"
#include "server/routes.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

ReadState MakeReadState(const JsonDocument& document, const ServedModel& model) {
  ReadState state;
  state.document = &document;
  state.reject_duplicate_keys = model.chat.reject_duplicate_keys;
  return state;
}

void CheckModel(const ServerState& state, ObjectReader* reader, ReadState* read) {
  const std::optional<std::string> name = reader->String("model");
  if (!name || read->error || state.Serves(*name)) return;
  read->error = ModelNotFoundError(*name, state.model()->chat.served_models);
}

// The chat form: the same conversion as the chat route, with the default model when none is named.
ApiResult<std::vector<int32_t>> TokenizeMessages(const ServerState& state, const ServedModel& model,
                                                 const HttpRequest& http_request,
                                                 const json::object& body) {
  json::object chat = body;
  chat.erase("add_special_tokens");
  const json::value* name = chat.if_contains("model");
  if (name == nullptr || name->is_null()) chat["model"] = state.options.served_model_names.front();
  ApiResult<PreparedChat> prepared = PrepareChat(state, model, http_request, json::serialize(chat));
  if (!prepared) return tl::unexpected(std::move(prepared.error()));
  return std::move(prepared->prompt_ids);
}

ApiResult<std::vector<int32_t>> Tokenize(const ServerState& state, const ServedModel& model,
                                         const HttpRequest& http_request) {
  ApiResult<JsonDocument> document = ParseJsonBody(http_request.body);
  if (!document) return tl::unexpected(std::move(document.error()));
  const json::object* object = document->root().if_object();
  if (object != nullptr && object->contains("messages") && !object->contains("prompt")) {
    return TokenizeMessages(state, model, http_request, *object);
  }
  ReadState read = MakeReadState(*document, model);
  ObjectReader reader(&read, document->root(), "");
  RawPrompt prompt;
  prompt.text = reader.RequiredString("prompt");
  const bool add_special = reader.Bool("add_special_tokens").value_or(true);
  CheckModel(state, &reader, &read);
  if (read.error) return tl::unexpected(std::move(*read.error));
  const bool specials = state.options.raw_prompt_specials;
  if (add_special) {
    ApiResult<EncodedPrompt> encoded = EncodeRawPrompt(
        *model.context.tokenizer, model.context.special, prompt, std::nullopt, specials);
    if (!encoded) return tl::unexpected(std::move(encoded.error()));
    return std::move(encoded->ids);
  }
  std::vector<int32_t> ids;
  if (specials) {
    model.context.tokenizer->EncodeWithSpecials(*prompt.text, &ids);
  } else {
    model.context.tokenizer->EncodeText(*prompt.text, &ids);
  }
  return ids;
}

ApiResult<std::vector<int32_t>> ReadTokens(const ServerState& state, const ServedModel& model,
                                           std::string_view body) {
  ApiResult<JsonDocument> document = ParseJsonBody(body);
  if (!document) return tl::unexpected(std::move(document.error()));
  ReadState read = MakeReadState(*document, model);
  ObjectReader reader(&read, document->root(), "");
  std::vector<int32_t> ids;
  if (reader.valid()) {
    if (reader.Require("tokens") == nullptr) return tl::unexpected(std::move(*read.error));
    const json::array* array = reader.Array("tokens");
    if (array == nullptr && !read.error) reader.WrongType("tokens", "an array of token ids");
    for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
      const json::value& element = (*array)[i];
      const std::string path = IndexPath("tokens", i);
      if (!element.is_int64()) {
        read.Fail(path, "invalid_type", "Invalid type for '" + path + "': expected a token id.");
      } else if (element.get_int64() < 0 || element.get_int64() >= model.chat.vocab_size) {
        read.Fail(path, "invalid_value",
                  "Invalid '" + path + "': " + std::to_string(element.get_int64()) +
                      " is not a token id in [0, " + std::to_string(model.chat.vocab_size) + ").");
      } else {
        ids.push_back(static_cast<int32_t>(element.get_int64()));
      }
    }
    CheckModel(state, &reader, &read);
  }
  if (read.error) return tl::unexpected(std::move(*read.error));
  return ids;
}

}  // namespace

void HandleTokenize(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const ApiResult<std::vector<int32_t>> ids = Tokenize(state, *model, exchange->request());
  if (!ids) return RespondError(*exchange, ids.error());
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Key("tokens").BeginArray();
  for (const int32_t id : *ids) json.Int(id);
  json.EndArray().Field("count", static_cast<int64_t>(ids->size()));
  json.Field("max_model_len", int64_t{model->context.gateway->info().max_model_len}).EndObject();
  exchange->Respond(std::move(response));
}

void HandleDetokenize(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  const ApiResult<std::vector<int32_t>> ids = ReadTokens(state, *model, exchange->request().body);
  if (!ids) return RespondError(*exchange, ids.error());
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject().Field("prompt", model->context.tokenizer->Decode(*ids)).EndObject();
  exchange->Respond(std::move(response));
}

void HandleTokenizerInfo(ServerState& state, const std::shared_ptr<HttpExchange>& exchange) {
  const auto model = state.model();
  HttpResponse response;
  JsonWriter json(&response.body);
  json.BeginObject();
  json.Field("bos_token", kBosString).Field("eos_token", kEosString).Field("pad_token", kPadString);
  json.Field("chat_template",
             "Rendered by the server, not by a template: POST /v1/chat/completions/render");
  json.Field("vocab_size", int64_t{model->context.gateway->info().vocab_size}).EndObject();
  exchange->Respond(std::move(response));
}

}  // namespace deepinfer
