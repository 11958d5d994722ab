#include "server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "server/cache_controls.h"
#include "server/chat_convert.h"
#include "server/field_reader.h"
#include "server/json_body.h"
#include "server/responses_body.h"
#include "server/responses_turns.h"

namespace deepinfer {
namespace {

bool HasJsonWord(std::string_view text) {
  constexpr std::string_view kWord = "json";
  return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(),
                     [](char a, char b) { return (a | 0x20) == b; }) != text.end();
}

// json_object needs the word "json" in a message, an output or the instructions.
Refusal CheckJsonWord(const ResponsesBody& body) {
  const auto& format = body.common.response_format;
  if (!format || format->kind != ResponseFormat::kJsonObject) return std::nullopt;
  if (body.instructions && HasJsonWord(*body.instructions)) return std::nullopt;
  for (const ResponsesItem& item : body.items) {
    for (const ResponsesPart& part : item.parts) {
      if (HasJsonWord(part.text)) return std::nullopt;
    }
  }
  return Refuse("input",
                "Response input messages must contain the word 'json' in some form to use "
                "'text.format' of type 'json_object'.");
}

Refusal CheckUnsupported(const ResponsesBody& body, const ChatRequestOptions& options) {
  if (options.responses_extensions && body.unsupported) {
    return Refuse(*body.unsupported,
                  "This server keeps no responses: '" + *body.unsupported +
                      "' is not supported, send the whole history",
                  "unsupported_parameter");
  }
  if (options.reject_server_tools && body.has_server_tools) {
    return Refuse("tools", "Server tools are not supported", "unsupported_parameter");
  }
  return std::nullopt;
}

Refusal CheckCacheBreakpoints(const ResponsesBody& body) {
  if (body.common.labels.num_cache_breakpoints <= kMaxCacheMarks) return std::nullopt;
  return Refuse("input",
                fmt::format("Too many cache breakpoints: at most {} per request.", kMaxCacheMarks));
}

// The form decides how names read; a model nobody serves is refused later, in its turn.
PromptForm FormOf(const boost::json::value& root, const ChatRequestOptions& options) {
  const boost::json::object* object = root.if_object();
  const boost::json::value* model = object == nullptr ? nullptr : object->if_contains("model");
  if (model == nullptr || !model->is_string() || !options.resolve_model) {
    return options.default_form;
  }
  const boost::json::string& name = model->get_string();
  return options.resolve_model({name.data(), name.size()}).value_or(options.default_form);
}

}  // namespace

ApiResult<ResponsesRequest> ParseResponsesRequest(std::string_view body_text,
                                                  const ChatRequestOptions& options) {
  ApiResult<JsonDocument> document = ParseJsonBody(body_text);
  if (!document) return tl::unexpected(std::move(document.error()));

  ReadState state;
  state.document = &*document;
  state.reject_duplicate_keys = options.reject_duplicate_keys;
  ResponsesBody body =
      ReadResponsesBody(document->root(), FormOf(document->root(), options), options, &state);
  if (state.error) return tl::unexpected(std::move(*state.error));

  ResponsesRequest request;
  const TurnsStep convert_turns = [&](ChatRequest* target) -> Refusal {
    if (Refusal refusal = CheckUnsupported(body, options)) return refusal;
    if (Refusal refusal = CheckCacheBreakpoints(body)) return refusal;
    return ConvertResponsesTurns(body, options, target);
  };
  const CheckStep check_word = [&] { return CheckJsonWord(body); };
  if (Refusal refusal =
          ConvertBody(body.common, options, convert_turns, &request.common, check_word)) {
    return tl::unexpected(std::move(*refusal));
  }
  request.common.prompt_field = "input";
  ResolveAddedTools(&request.common.conversation);
  NormalizeTurns(&request.common.conversation);
  request.tools = std::move(body.tools);
  request.echo_json = std::move(body.echo_json);
  return request;
}

}  // namespace deepinfer
