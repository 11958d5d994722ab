#include "server/completions_request.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "server/chat_body.h"
#include "server/chat_convert.h"
#include "server/completions_body.h"
#include "server/error_response.h"
#include "server/field_reader.h"
#include "server/json_body.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultMaxTokens = 16;
constexpr size_t kMaxChoices = 2048;      // prompts times n
constexpr int32_t kMaxFillTokens = 4096;  // output limit with a suffix

bool ReadIds(const json::array& array, std::vector<int32_t>* ids) {
  for (const json::value& element : array) {
    if (!element.is_int64() || !std::in_range<int32_t>(element.get_int64())) return false;
    ids->push_back(static_cast<int32_t>(element.get_int64()));
  }
  return true;
}

// A string, an array of strings, an array of ids, an array of arrays of ids; absent: empty text.
void ReadPrompts(ObjectReader* body, std::vector<RawPrompt>* prompts) {
  constexpr std::string_view kExpected =
      "a string, an array of strings, an array of token ids or an array of such arrays";
  const json::value* value = body->Find("prompt");
  if (value == nullptr) {
    prompts->push_back({.text = std::string(), .ids = {}});
    return;
  }
  if (value->is_string()) {
    prompts->push_back({.text = std::string(value->get_string()), .ids = {}});
    return;
  }
  if (!value->is_array()) return body->WrongType("prompt", kExpected);
  const json::array& array = value->get_array();
  if (array.empty()) return body->Fail("prompt", "invalid_value", "Invalid 'prompt': empty array.");
  if (array.front().is_int64() || array.front().is_uint64()) {
    RawPrompt prompt;
    if (!ReadIds(array, &prompt.ids)) return body->WrongType("prompt", kExpected);
    prompts->push_back(std::move(prompt));
    return;
  }
  if (array.size() > kMaxChoices) {
    return body->Fail("prompt", "invalid_value",
                      fmt::format("Invalid 'prompt': at most {} prompts.", kMaxChoices));
  }
  for (const json::value& element : array) {
    RawPrompt prompt;
    if (element.is_string() && array.front().is_string()) {
      prompt.text = std::string(element.get_string());
    } else if (!element.is_array() || !array.front().is_array() ||
               !ReadIds(element.get_array(), &prompt.ids)) {
      return body->WrongType("prompt", kExpected);
    }
    prompts->push_back(std::move(prompt));
  }
}

Refusal Convert(const ChatBody& body, const ChatRequestOptions& options,
                std::optional<int64_t> best_of, CompletionsRequest* request) {
  ChatRequest& common = request->common;
  common.model = body.model;
  common.prompt_field = "prompt";
  common.return_token_ids = body.return_token_ids;
  common.test_hooks = body.test_hooks;
  common.labels = body.labels;
  common.unknown_fields = body.unknown_fields;
  // Raw completions have no thinking mode; the sampling rules of the plain mode apply.
  common.conversation.thinking = false;
  if (options.resolve_model && !options.resolve_model(body.model)) {
    ApiError error = ModelNotFoundError(body.model, options.served_models);
    error.status = options.unknown_model_status;
    return error;
  }
  if (Refusal refusal = ConvertStop(body, options, &common)) return refusal;
  if (Refusal refusal = ConvertStream(body, &common)) return refusal;
  if (Refusal refusal = ConvertResponseFormat(body, options, &common)) return refusal;
  if (Refusal refusal = ConvertSampling(body, options, &common)) return refusal;
  if (Refusal refusal = ConvertLabels(body, &common)) return refusal;
  if (!common.max_tokens) common.max_tokens = kDefaultMaxTokens;
  request->num_answers = common.num_choices;
  if (best_of && *best_of < common.num_choices) {
    return Refuse("best_of", "'best_of' must not be less than 'n'.");
  }
  if (best_of && *best_of > common.num_choices && common.stream.stream) {
    return Refuse("best_of", "'best_of' above 'n' cannot be streamed: the best are known at last.");
  }
  common.num_choices = static_cast<int32_t>(best_of.value_or(common.num_choices));
  if (request->prompts.size() * static_cast<size_t>(common.num_choices) > kMaxChoices) {
    return Refuse("n", fmt::format("At most {} choices for all prompts together.", kMaxChoices));
  }
  for (const RawPrompt& prompt : request->prompts) {
    for (const int32_t id : prompt.ids) {
      if (id >= 0 && id < options.vocab_size) continue;
      return Refuse("prompt", fmt::format("Invalid 'prompt': {} is not a token id in [0, {}).", id,
                                          options.vocab_size));
    }
  }
  if (request->suffix &&
      (request->echo || request->prompts.size() != 1 || !request->prompts.front().text)) {
    return Refuse("suffix", "'suffix' needs one text prompt and no 'echo'.");
  }
  if (request->suffix && *common.max_tokens > kMaxFillTokens) {
    return Refuse("max_tokens", fmt::format("With 'suffix' at most {} tokens.", kMaxFillTokens));
  }
  return std::nullopt;
}

}  // namespace

CompletionsBody ReadCompletionsBody(const json::value& root, const ChatRequestOptions& options,
                                    const CompletionsLimits& limits, ReadState* state) {
  CompletionsBody result;
  ChatBody& body = result.common;
  ObjectReader reader(state, root, "");
  if (!reader.valid()) return result;
  body.model = reader.RequiredString("model");
  ReadPrompts(&reader, &result.request.prompts);
  result.request.suffix = reader.String("suffix");
  result.request.echo = reader.Bool("echo").value_or(false);
  if (auto logprobs = reader.Integer("logprobs", 0, limits.max_logprobs)) {
    result.request.logprobs = static_cast<int32_t>(*logprobs);
  }
  result.best_of = reader.Integer("best_of", 1, 128);
  body.response_format = ReadResponseFormat(&reader);
  ReadStructuredOutputs(&reader, &body.structured_outputs);
  ReadSampling(&reader, &body);
  ReadStream(&reader, &body);
  ReadLabels(&reader, &body.labels);
  body.return_token_ids = reader.Bool("return_token_ids").value_or(false);
  if (options.test_hooks) ReadTestHooks(&reader, &body.test_hooks);
  CheckUnknownFields(&reader, options, &body);
  return result;
}

ApiResult<CompletionsRequest> ParseCompletionsRequest(std::string_view body_text,
                                                      const ChatRequestOptions& options,
                                                      const CompletionsLimits& limits) {
  ApiResult<JsonDocument> document = ParseJsonBody(body_text);
  if (!document) return tl::unexpected(std::move(document.error()));
  ReadState state;
  state.document = &*document;
  state.reject_duplicate_keys = options.reject_duplicate_keys;

  CompletionsBody body = ReadCompletionsBody(document->root(), options, limits, &state);
  if (state.error) return tl::unexpected(std::move(*state.error));
  if (Refusal refusal = Convert(body.common, options, body.best_of, &body.request)) {
    return tl::unexpected(std::move(*refusal));
  }
  return std::move(body.request);
}

ApiResult<EncodedPrompt> EncodeRawPrompt(const Tokenizer& tokenizer, const SpecialTokens& special,
                                         const RawPrompt& prompt,
                                         const std::optional<std::string>& suffix, bool specials) {
  EncodedPrompt encoded;
  std::vector<int32_t>& ids = encoded.ids;
  const auto encode = [&](std::string_view text) {
    if (specials) {
      tokenizer.EncodeWithSpecials(text, &ids);
    } else {
      tokenizer.EncodeText(text, &ids);
    }
  };
  if (suffix) {
    if (!special.fim_begin || !special.fim_hole || !special.fim_end) {
      return tl::unexpected(
          UnsupportedParameterError("suffix", "The model has no fill-in-the-middle tokens"));
    }
    ids.push_back(*special.fim_begin);
    encode(*prompt.text);
    ids.push_back(*special.fim_hole);
    encode(*suffix);
    ids.push_back(*special.fim_end);
  } else if (prompt.text) {
    encode(*prompt.text);
  } else {
    ids = prompt.ids;
  }
  if (ids.empty() || ids.front() != special.bos) {
    ids.insert(ids.begin(), special.bos);
    encoded.begin_added = true;
  }
  return encoded;
}

}  // namespace deepinfer
