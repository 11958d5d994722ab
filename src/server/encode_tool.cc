#include "server/encode_tool.h"

#include <boost/json.hpp>
#include <limits>
#include <map>
#include <memory>

#include "base/sha256.h"
#include "server/chat_request.h"
#include "server/messages_request.h"
#include "server/responses_request.h"
#include "text/json_text.h"
#include "text/prompt_encoder.h"
#include "text/python_json.h"
#include "text/renderer.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int kErrorExitCode = 2;

struct ToolOptions {
  ChatRequestOptions chat;
  std::map<std::string, PromptForm, std::less<>> models = {
      {"DeepSeek-V4-Pro", PromptForm::kV4}, {"DeepSeek-V4.1-Flash", PromptForm::kV41}};
  std::optional<PromptForm> any_model;
};

// The official conversion: its limits and overrides instead of the server's.
void UseOfficialRules(ChatRequestOptions* options) {
  options->sampling_policy = SamplingPolicy::kDeepSeek;
  options->reject_duplicate_keys = false;
  options->read_template_arguments = false;
  options->check_regex = false;
  options->unknown_model_status = 400;
  options->max_tools = std::numeric_limits<size_t>::max();
  options->max_images = std::numeric_limits<size_t>::max();
  options->max_stop_bytes = std::numeric_limits<size_t>::max();
  options->served_models = "DeepSeek-V4-Pro, DeepSeek-V4.1-Flash";
  options->messages_any_forces = false;
  options->messages_extensions = false;
  options->responses_extensions = false;
}

std::optional<PromptForm> FormOf(const json::value& value) {
  if (!value.is_string()) return std::nullopt;
  if (value.get_string() == "v4") return PromptForm::kV4;
  if (value.get_string() == "v41") return PromptForm::kV41;
  return std::nullopt;
}

Status BadValue(std::string_view name) {
  return InvalidRequest("bad value for the option " + std::string(name));
}

Status ReadLimit(std::string_view name, const json::value& value, int32_t* limit) {
  if (!value.is_int64() || value.get_int64() < 1 ||
      value.get_int64() > std::numeric_limits<int32_t>::max()) {
    return BadValue(name);
  }
  *limit = static_cast<int32_t>(value.get_int64());
  return OkStatus();
}

Status ReadAliases(const json::value& value, ToolOptions* options) {
  if (!value.is_object()) return BadValue("model_aliases");
  for (const auto& member : value.get_object()) {
    const std::optional<PromptForm> form = FormOf(member.value());
    if (!form) return BadValue("model_aliases");
    options->models.insert_or_assign(std::string(member.key()), *form);
  }
  return OkStatus();
}

Status ReadOption(std::string_view name, const json::value& value, ToolOptions* options) {
  if (name == "default_thinking_mode") {
    if (!value.is_bool()) return BadValue(name);
    options->chat.default_thinking = value.get_bool();
    return OkStatus();
  }
  if (name == "reasoning_content_behavior") {
    const bool rejects = value.is_string() && value.get_string() == "reject";
    const bool fills = value.is_string() && value.get_string() == "fill_empty";
    if (!rejects && !fills) return BadValue(name);
    options->chat.reasoning_passback =
        rejects ? ReasoningPassback::kReject : ReasoningPassback::kFillEmpty;
    return OkStatus();
  }
  if (name == "thinking_max_tokens_upper_bound") {
    return ReadLimit(name, value, &options->chat.max_tokens_limit_thinking);
  }
  if (name == "non_thinking_max_tokens_upper_bound") {
    return ReadLimit(name, value, &options->chat.max_tokens_limit_plain);
  }
  if (name == "model_aliases") return ReadAliases(value, options);
  if (name == "model_version") {
    options->any_model = FormOf(value);
    return options->any_model ? OkStatus() : BadValue(name);
  }
  if (name == "responses_web_search" || name == "messages_web_search") {
    const bool drops = value.is_string() && value.get_string() == "drop";
    const bool rejects = value.is_string() && value.get_string() == "reject";
    if (!drops && !rejects) return BadValue(name);
    if (name.starts_with("messages")) options->chat.drop_server_tools = drops;
    if (name.starts_with("responses")) options->chat.reject_server_tools = rejects;
    return OkStatus();
  }
  return InvalidRequest("unknown option " + std::string(name));
}

Status ReadOptions(const ConversionOptionList& given, ToolOptions* options) {
  UseOfficialRules(&options->chat);
  for (const auto& [name, text] : given) {
    JsonDocument document;
    JsonFailure failure;
    if (!ParseJson(text, &document, &failure)) {
      return InvalidRequest(BadValue(name).message() + ": " + failure.ToString());
    }
    DI_RETURN_IF_ERROR(ReadOption(name, document.root(), options));
  }
  options->chat.resolve_model = [models = options->models, any = options->any_model](
                                    std::string_view model) -> std::optional<PromptForm> {
    if (any) return any;
    const auto found = models.find(model);
    return found == models.end() ? std::nullopt : std::optional(found->second);
  };
  return OkStatus();
}

json::value OptionalInt(const std::optional<int32_t>& number) {
  return number ? json::value(*number) : json::value(nullptr);
}

json::array ImageSources(const ChatRequest& request, const std::vector<int32_t>& indexes) {
  json::array sources;
  for (int32_t index : indexes) {
    const ImageSource& image = request.images[static_cast<size_t>(index)];
    json::object source = {{"kind", image.is_data_url ? "data_url" : "url"},
                           {"detail", std::string(ImageDetailName(image.detail))},
                           {"path", image.path}};
    if (image.is_data_url) {
      source["data_url_sha256"] = Sha256Hex(image.url);
    } else {
      source["url"] = image.url;
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

json::object Inference(const ChatRequest& request) {
  json::object inference = {{"max_tokens", OptionalInt(request.max_tokens)},
                            {"temperature", static_cast<double>(request.sampling.temperature)},
                            {"top_p", static_cast<double>(request.sampling.top_p)},
                            {"logprobs", request.logprobs},
                            {"top_logprobs", OptionalInt(request.top_logprobs)},
                            {"seed", nullptr},
                            {"output_constraint", nullptr}};
  if (request.sampling.has_seed) inference["seed"] = request.sampling.seed;
  if (request.constraint) {
    inference["output_constraint"] = {
        {"kind", std::string(ConstraintKindName(request.constraint->kind))},
        {"schema", request.constraint->schema}};
  }
  return inference;
}

json::value InitialStage(const ChatRequest& request) {
  if (!request.conversation.thinking) return nullptr;
  switch (request.parsing.start) {
    case OutputStart::kReasoningStart:
      return "reasoning_start";
    case OutputStart::kReasoningContinuation:
      return "reasoning_continuation";
    case OutputStart::kContentContinuation:
      return "content_continuation";
    case OutputStart::kContentStart:
      break;
  }
  return nullptr;
}

json::object Parsing(const ChatRequest& request) {
  const ParsingSettings& parsing = request.parsing;
  return {{"parse_tool_calls", parsing.parse_tool_calls},
          {"starts_in_tool_calls", parsing.starts_in_tool_calls},
          {"parse_json_output", parsing.parse_json_output},
          {"thinking_initial_stage", InitialStage(request)},
          {"stop_sequences", json::value_from(parsing.stop_sequences)}};
}

std::string_view ToolChoiceName(ToolChoice choice) {
  switch (choice) {
    case ToolChoice::kNone:
      return "none";
    case ToolChoice::kAuto:
      return "auto";
    case ToolChoice::kRequired:
    case ToolChoice::kNamed:
      return "required";
  }
  return "auto";
}

json::value EffortName(const ChatRequest& request) {
  if (!request.conversation.thinking) return nullptr;
  if (request.effort_name.empty()) return request.conversation.effort;
  return json::value(request.effort_name);
}

json::array SpecialRanges(const PromptText& prompt) {
  json::array ranges;
  for (const auto& [begin, end] : prompt.special_ranges) ranges.push_back(json::array{begin, end});
  return ranges;
}

json::object SuccessObject(const ChatRequest& request, const PromptText& prompt,
                           const std::vector<int32_t>& ids) {
  return {{"prompt", prompt.prompt},
          {"ids", json::value_from(ids)},
          {"special_ranges", SpecialRanges(prompt)},
          {"image_sources", ImageSources(request, prompt.image_indexes)},
          {"thinking_mode", request.conversation.thinking},
          {"tool_choice", std::string(ToolChoiceName(request.tool_choice))},
          {"reasoning_effort", EffortName(request)},
          {"response_format", std::string(ResponseFormatName(request.response_format))},
          {"tool_names", json::value_from(request.tool_names)},
          {"inference", Inference(request)},
          {"parsing", Parsing(request)},
          {"stream", request.stream.stream}};
}

// Refused conversions carry the fixed type, param and code of the reference vectors; the finer ones
// of the server's answer (docs/api.md section 12) stay with faults of the body's shape.
EncodeOutcome ErrorOutcome(const ApiError& error) {
  const bool refused = error.stage == ErrorStage::kConvert;
  const std::string type = refused ? "invalid_request_error" : error.type;
  const std::string code = refused ? "invalid_request_error" : error.code;
  const json::value param =
      refused || !error.param ? json::value(nullptr) : json::value(*error.param);
  const json::object body = {{"error",
                              {{"status", error.status},
                               {"stage", std::string(ErrorStageName(error.stage))},
                               {"message", error.message},
                               {"type", type},
                               {"param", param},
                               {"code", code}}}};
  return {PythonJson(body), kErrorExitCode};
}

using ToolMap = std::map<std::string, ResponsesTool, std::less<>>;

Result<ApiResult<ChatRequest>> Parse(std::string_view dialect, const ChatRequestOptions& options,
                                     std::string_view body, ToolMap* tools) {
  const auto common_of = [](auto request) -> ApiResult<ChatRequest> {
    if (!request) return tl::unexpected(std::move(request.error()));
    return std::move(request->common);
  };
  if (dialect == "chat") return ParseChatRequest(body, options);
  if (dialect == "messages") return common_of(ParseMessagesRequest(body, options));
  if (dialect == "responses") {
    ApiResult<ResponsesRequest> request = ParseResponsesRequest(body, options);
    if (request) *tools = request->tools;
    return common_of(std::move(request));
  }
  return InvalidRequest("unknown dialect " + std::string(dialect));
}

// name in the prompt -> [namespace, name], of the declared tools that have a namespace.
json::object NamespaceMap(const ToolMap& tools) {
  json::object map;
  for (const auto& [name, tool] : tools) {
    if (tool.is_declared && !tool.name_space.empty()) {
      map[name] = json::array{tool.name_space, tool.name};
    }
  }
  return map;
}

}  // namespace

Result<EncodeOutcome> RunEncode(const Tokenizer& tokenizer, std::string_view dialect,
                                const ConversionOptionList& options, std::string_view body) {
  ToolOptions tool_options;
  DI_RETURN_IF_ERROR(ReadOptions(options, &tool_options));

  ToolMap tools;
  DI_ASSIGN_OR_RETURN(const ApiResult<ChatRequest> request,
                      Parse(dialect, tool_options.chat, body, &tools));
  if (!request) return ErrorOutcome(request.error());
  const std::vector<Segment> segments =
      Render(request->conversation, {.add_generation_header = request->add_generation_prompt});
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodeSegments(tokenizer, segments));
  const PromptText prompt = BuildPromptText(segments, kImagePlaceholderOfVectors);
  json::object result = SuccessObject(*request, prompt, ids);
  if (json::object map = NamespaceMap(tools); !map.empty()) {
    result["namespace_tool_map"] = std::move(map);
  }
  return EncodeOutcome{PythonJson(result), 0};
}

Result<EncodeOutcome> RunEncodeLine(const Tokenizer& tokenizer, std::string_view dialect,
                                    ConversionOptionList options, std::string_view line) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(line, &document, &failure)) return InvalidRequest(failure.ToString());
  const json::object* fields = document.root().if_object();
  if (fields == nullptr) return InvalidRequest("expected an object");
  const json::value* raw = fields->if_contains("raw");
  const json::value* request = fields->if_contains("request");
  if (raw != nullptr ? !raw->is_string() : request == nullptr) {
    return InvalidRequest("expected `request`, or `raw` with a string");
  }
  if (const json::value* given = fields->if_contains("options"); given && given->is_object()) {
    for (const auto& [name, value] : given->get_object()) {
      options.emplace_back(std::string(name), PythonJson(value));
    }
  }
  return RunEncode(tokenizer, dialect, options,
                   raw != nullptr ? std::string(raw->get_string()) : PythonJson(*request));
}

}  // namespace deepinfer
