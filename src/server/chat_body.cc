#include "server/chat_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "server/field_reader.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxUint8 = 255;
constexpr int32_t kMaxEffortNumber = 100;

constexpr std::array<std::string_view, 8> kIgnoredFields = {
    "metadata",           "store",      "verbosity", "prediction",
    "web_search_options", "moderation", "functions", "function_call"};

void ReadThinking(ObjectReader* body, const ChatRequestOptions& options, ChatBody* result) {
  result->thinking = ReadThinkingType(body);
  result->effort = ReadEffort(body, "reasoning_effort");
  if (!options.read_template_arguments) {
    body->Find("chat_template_kwargs");
    return;
  }
  if (auto arguments = body->Object("chat_template_kwargs")) {
    result->template_arguments.thinking = arguments->Bool("thinking");
    if (auto enable = arguments->Bool("enable_thinking")) {
      if (!result->template_arguments.thinking) result->template_arguments.thinking = enable;
    }
    result->template_arguments.effort = ReadEffort(&*arguments, "reasoning_effort");
  }
}

void ReadIgnored(ObjectReader* body, ChatBody* result) {
  for (std::string_view key : kIgnoredFields) {
    if (body->Find(key) != nullptr) result->ignored_fields.emplace_back(key);
  }
  if (const json::value* modalities = body->Find("modalities")) {
    result->ignored_fields.emplace_back("modalities");
    if (!modalities->is_array()) return;
    for (const json::value& modality : modalities->get_array()) {
      if (modality.is_string() && modality.get_string() == "audio") result->wants_audio = true;
    }
  }
}

}  // namespace

std::optional<BodyEffort> ReadEffort(ObjectReader* object, std::string_view key) {
  const json::value* value = object->Find(key);
  object->NoteAlternative(key, "integer");
  if (value != nullptr && value->is_int64()) {
    const int64_t number = value->get_int64();
    if (number < 1 || number > kMaxEffortNumber) {
      object->Fail(key, "invalid_value",
                   fmt::format("Invalid '{}': expected an integer in [1, {}] or a named effort.",
                               object->PathOf(key), kMaxEffortNumber));
      return std::nullopt;
    }
    return BodyEffort{false, static_cast<int32_t>(number), {}};
  }
  static const std::vector<std::string_view> kNames = {"none", "minimal", "low", "medium",
                                                       "high", "xhigh",   "max", "ultra"};
  const std::optional<size_t> name = object->OneOf(key, kNames);
  if (!name) return std::nullopt;
  switch (*name) {
    case 0:
      return BodyEffort{true, kEffortHigh, {}};
    case 1:
    case 2:
      return BodyEffort{false, kEffortLow, "low"};
    case 3:
    case 4:
      return BodyEffort{false, kEffortHigh, "high"};
    case 5:
      return BodyEffort{false, kEffortHigh, "xhigh"};
    default:
      return BodyEffort{false, kEffortMax, "max"};
  }
}

std::optional<bool> ReadThinkingType(ObjectReader* body) {
  static const std::vector<std::string_view> kTypes = {"disabled", "enabled", "adaptive"};
  auto thinking = body->Object("thinking");
  if (!thinking) return std::nullopt;
  thinking->Integer("budget_tokens", 0, std::numeric_limits<int64_t>::max());
  return thinking->RequiredOneOf("type", kTypes) != 0;
}

void CheckUnknownFields(ObjectReader* body, const ChatRequestOptions& options, ChatBody* result) {
  result->unknown_fields = body->UnreadKeys();
  if (!options.strict_fields || result->unknown_fields.empty()) return;
  body->Fail(result->unknown_fields.front(), "unknown_parameter",
             fmt::format("Unknown parameter: '{}'.", result->unknown_fields.front()));
}

ChatBody ReadChatBody(const json::value& root, const ChatRequestOptions& options,
                      ReadState* state) {
  ChatBody result;
  ObjectReader body(state, root, "");
  if (!body.valid()) return result;
  result.model = body.RequiredString("model");
  ReadMessages(&body, state, &result.messages);
  ReadThinking(&body, options, &result);
  ReadTools(&body, state, &result.tools);
  result.tool_choice = ReadToolChoice(&body, state);
  result.parallel_tool_calls = body.Bool("parallel_tool_calls");
  result.response_format = ReadResponseFormat(&body);
  ReadSampling(&body, &result);
  result.logprobs = body.Bool("logprobs");
  result.top_logprobs =
      body.Integer("top_logprobs", 0, std::max<int64_t>(kMaxUint8, options.max_top_logprobs));
  ReadStream(&body, &result);
  ReadStructuredOutputs(&body, &result.structured_outputs);
  ReadLabels(&body, &result.labels);
  result.continue_final_message = body.Bool("continue_final_message").value_or(false);
  result.return_token_ids = body.Bool("return_token_ids").value_or(false);
  result.echo = body.Bool("echo").value_or(false);
  result.add_generation_prompt = body.Bool("add_generation_prompt").value_or(true);
  if (options.test_hooks) ReadTestHooks(&body, &result.test_hooks);
  ReadIgnored(&body, &result);
  CheckUnknownFields(&body, options, &result);
  return result;
}

}  // namespace deepinfer
