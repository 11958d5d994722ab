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
constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();
constexpr int32_t kMaxEffortNumber = 100;

constexpr std::array<std::string_view, 8> kIgnoredFields = {
    "metadata",           "store",      "verbosity", "prediction",
    "web_search_options", "moderation", "functions", "function_call"};

std::optional<BodyEffort> ReadEffort(ObjectReader* object, std::string_view key) {
  const json::value* value = object->Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) {
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

void ReadThinking(ObjectReader* body, const ChatRequestOptions& options, ChatBody* result) {
  static const std::vector<std::string_view> kTypes = {"disabled", "enabled", "adaptive"};
  if (auto thinking = body->Object("thinking")) {
    result->thinking = thinking->RequiredOneOf("type", kTypes) != 0;
  }
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

void ReadStop(ObjectReader* body, ChatBody* result) {
  const json::value* stop = body->Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    result->stop.emplace_back(stop->get_string());
    return;
  }
  if (!stop->is_array()) {
    body->WrongType("stop", "a string or an array of strings");
    return;
  }
  result->stop_is_array = true;
  for (const json::value& element : stop->get_array()) {
    if (!element.is_string()) {
      body->WrongType("stop", "an array of strings");
      return;
    }
    result->stop.emplace_back(element.get_string());
  }
}

template <typename Number>
void ReadIntegers(ObjectReader* body, std::string_view key, std::vector<Number>* numbers) {
  const json::array* array = body->Array(key);
  if (array == nullptr) return;
  for (const json::value& element : *array) {
    if (!element.is_int64() || !std::in_range<Number>(element.get_int64())) {
      body->WrongType(key, "an array of integers");
      return;
    }
    numbers->push_back(static_cast<Number>(element.get_int64()));
  }
}

std::optional<uint64_t> ReadSeed(ObjectReader* body) {
  const json::value* seed = body->Find("seed");
  if (seed == nullptr) return std::nullopt;
  if (seed->is_uint64()) return seed->get_uint64();
  const auto number = body->Integer("seed", 0, kMaxInt64);
  if (!number) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

void ReadLogitBias(ObjectReader* body, ChatBody* result) {
  const json::value* bias = body->Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    body->WrongType("logit_bias", "an object");
    return;
  }
  for (const auto& member : bias->get_object()) {
    const std::optional<double> number = AsNumber(member.value());
    if (!number) {
      body->WrongType("logit_bias", "an object of numbers");
      return;
    }
    result->logit_bias.emplace_back(std::string(member.key()), *number);
  }
}

void ReadSampling(ObjectReader* body, const ChatRequestOptions& options, ChatBody* result) {
  static const std::vector<std::string_view> kModes = {"auto", "strict", "rejection"};
  result->max_tokens = body->Integer("max_tokens", 0, kMaxUint32);
  result->max_completion_tokens = body->Integer("max_completion_tokens", 0, kMaxUint32);
  result->min_tokens = body->Integer("min_tokens", 0, kMaxInt32);
  result->temperature = body->Number("temperature");
  result->top_p = body->Number("top_p");
  result->top_k = body->Integer("top_k", kMinInt32, kMaxInt32);
  result->min_p = body->Number("min_p");
  result->repetition_penalty = body->Number("repetition_penalty");
  result->frequency_penalty = body->Number("frequency_penalty");
  result->presence_penalty = body->Number("presence_penalty");
  result->n = body->Integer("n", 0, kMaxUint8);
  result->seed = ReadSeed(body);
  if (auto mode = body->OneOf("sampling_mode", kModes)) {
    result->sampling_mode = static_cast<SamplingMode>(*mode);
  }
  ReadLogitBias(body, result);
  ReadStop(body, result);
  ReadIntegers(body, "stop_token_ids", &result->stop_token_ids);
  result->include_stop_str_in_output = body->Bool("include_stop_str_in_output");
  result->ignore_eos = body->Bool("ignore_eos");
  result->logprobs = body->Bool("logprobs");
  result->top_logprobs =
      body->Integer("top_logprobs", 0, std::max<int64_t>(kMaxUint8, options.max_top_logprobs));
}

void ReadStream(ObjectReader* body, ChatBody* result) {
  result->stream = body->Bool("stream");
  if (auto options = body->Object("stream_options")) {
    result->has_stream_options = true;
    result->include_usage = options->Bool("include_usage").value_or(false);
    result->continuous_usage_stats = options->Bool("continuous_usage_stats").value_or(false);
    options->Bool("include_obfuscation");
  }
}

void ReadLabels(ObjectReader* body, RequestLabels* labels) {
  static const std::vector<std::string_view> kCacheModes = {"implicit", "explicit"};
  static const std::vector<std::string_view> kTiers = {"auto",     "default", "flex", "scale",
                                                       "priority", "fast",    "batch"};
  labels->user = body->String("user").value_or("");
  labels->safety_identifier = body->String("safety_identifier").value_or("");
  labels->user_id = body->String("user_id").value_or("");
  labels->cache_salt = body->String("cache_salt").value_or("");
  labels->prompt_cache_key = body->String("prompt_cache_key").value_or("");
  labels->prompt_cache_retention = body->String("prompt_cache_retention").value_or("");
  if (auto cache = body->Object("prompt_cache_options")) {
    if (auto mode = cache->OneOf("mode", kCacheModes)) {
      labels->prompt_cache_mode = kCacheModes[*mode];
    }
    labels->prompt_cache_ttl = cache->String("ttl").value_or("");
  }
  if (auto tier = body->OneOf("service_tier", kTiers)) labels->service_tier = kTiers[*tier];
  labels->request_id = body->String("request_id").value_or("");
  labels->session_id = body->String("session_id").value_or("");
  labels->priority = body->Integer("priority", kMinInt64, kMaxInt64).value_or(0);
}

void ReadTestHooks(ObjectReader* body, TestHookFields* hooks) {
  constexpr int64_t kMaxCommit = 8;
  ReadIntegers(body, "test_force_ids", &hooks->force_ids);
  hooks->force_text = body->String("test_force_text").value_or("");
  ReadIntegers(body, "test_force_accept", &hooks->force_accept);
  const json::value* commit = body->Find("test_commit");
  if (commit != nullptr && commit->is_string() && commit->get_string() == "all") {
    hooks->commit = -1;
  } else {
    hooks->commit = static_cast<int32_t>(body->Integer("test_commit", 1, kMaxCommit).value_or(0));
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
  ReadSampling(&body, options, &result);
  ReadStream(&body, &result);
  ReadStructuredOutputs(&body, &result.structured_outputs);
  ReadLabels(&body, &result.labels);
  result.continue_final_message = body.Bool("continue_final_message").value_or(false);
  result.return_token_ids = body.Bool("return_token_ids").value_or(false);
  result.echo = body.Bool("echo").value_or(false);
  result.add_generation_prompt = body.Bool("add_generation_prompt").value_or(true);
  if (options.test_hooks) ReadTestHooks(&body, &result.test_hooks);
  ReadIgnored(&body, &result);
  result.unknown_fields = body.UnreadKeys();
  if (options.strict_fields && !result.unknown_fields.empty()) {
    body.Fail(result.unknown_fields.front(), "unknown_parameter",
              fmt::format("Unknown parameter: '{}'.", result.unknown_fields.front()));
  }
  return result;
}

}  // namespace deepinfer
