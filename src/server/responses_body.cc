#include "server/responses_body.h"

#include <array>
#include <limits>

#include "server/field_reader.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxUint8 = std::numeric_limits<uint8_t>::max();

constexpr std::array<std::string_view, 8> kIgnoredFields = {
    "store",      "include",        "metadata",       "prompt",
    "moderation", "max_tool_calls", "stream_options", "background"};

void ReadFormat(ObjectReader* body, ChatBody* common) {
  static const std::vector<std::string_view> kTypes = {"text", "json_schema", "json_object"};
  auto text = body->Object("text");
  if (!text) return;
  static const std::vector<std::string_view> kVerbosities = {"low", "medium", "high"};
  text->OneOf("verbosity", kVerbosities);
  auto format = text->Object("format");
  if (!format) return;
  const size_t type = format->RequiredOneOf("type", kTypes);
  if (type == 0) return;
  BodyResponseFormat& read = common->response_format.emplace();
  read.kind = type == 1 ? ResponseFormat::kJsonSchema : ResponseFormat::kJsonObject;
  if (type != 1) return;
  format->RequiredString("name");
  format->String("description");
  read.strict = format->Bool("strict").value_or(false);
  read.schema = format->Require("schema");
}

void ReadReasoning(ObjectReader* body, ChatBody* common) {
  static const std::vector<std::string_view> kSummaries = {"auto", "concise", "detailed"};
  auto reasoning = body->Object("reasoning");
  if (!reasoning) return;
  common->effort = ReadEffort(&*reasoning, "effort");
  reasoning->OneOf("summary", kSummaries);
}

// History that the service would keep, and cutting it: neither exists here.
std::optional<std::string> ReadKeptState(ObjectReader* body) {
  std::optional<std::string> unsupported;
  for (const char* key : {"previous_response_id", "conversation"}) {
    if (body->Find(key) != nullptr && !unsupported) unsupported = key;
  }
  const json::value* background = body->Find("background");
  if (background != nullptr && background->is_bool() && background->get_bool() && !unsupported) {
    unsupported = "background";
  }
  const json::value* truncation = body->Find("truncation");
  if (truncation != nullptr && truncation->is_string() && truncation->get_string() == "auto" &&
      !unsupported) {
    unsupported = "truncation";
  }
  return unsupported;
}

}  // namespace

ResponsesBody ReadResponsesBody(const json::value& root, PromptForm form,
                                const ChatRequestOptions& options, ReadState* state) {
  ResponsesBody result;
  ChatBody& common = result.common;
  ObjectReader body(state, root, "");
  if (!body.valid()) return result;
  common.model = body.RequiredString("model");
  result.instructions = body.String("instructions");
  result.takes_any_custom_tool = options.responses_extensions;
  ReadResponsesTools(&body, form, state, &result);
  ReadResponsesInput(&body, form, state, &result);
  result.unsupported = ReadKeptState(&body);
  ReadReasoning(&body, &common);
  ReadFormat(&body, &common);
  if (const json::value* parallel = body.Find("parallel_tool_calls")) {
    if (parallel->is_bool()) common.parallel_tool_calls = parallel->get_bool();
  }
  common.max_tokens_name = "max_output_tokens";
  common.max_tokens = body.Integer(common.max_tokens_name, 0, kMaxUint32);
  common.temperature = body.Number("temperature");
  common.top_p = body.Number("top_p");
  common.top_logprobs = body.Integer("top_logprobs", 0, kMaxUint8);
  if (common.top_logprobs) common.logprobs = true;
  common.stream = body.Bool("stream");
  ReadLabels(&body, &common.labels);
  if (options.test_hooks) ReadTestHooks(&body, &common.test_hooks);
  for (std::string_view key : kIgnoredFields) {
    if (body.Find(key) != nullptr) common.ignored_fields.emplace_back(key);
  }
  CheckUnknownFields(&body, options, &common);
  result.echo_json = ResponsesEcho(root.get_object());
  return result;
}

}  // namespace deepinfer
