// Fields of a body that chat and raw completions share: sampling, stop strings, stream, labels.
#include <limits>
#include <utility>

#include "server/cache_controls.h"
#include "server/chat_body.h"
#include "server/field_reader.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxChoices = std::numeric_limits<uint8_t>::max();
constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();

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

void ReadWords(ObjectReader* body, std::string_view key, std::vector<std::string>* words) {
  const json::array* array = body->Array(key);
  if (array == nullptr) return;
  for (const json::value& element : *array) {
    if (!element.is_string()) {
      body->WrongType(key, "an array of strings");
      return;
    }
    words->emplace_back(element.get_string());
  }
}

// "" when it is absent; an empty text is no lifetime.
std::string ReadLifetime(ObjectReader* body, std::string_view key) {
  const std::optional<std::string> text = body->String(key);
  if (text && text->empty()) {
    body->Fail(key, "invalid_value",
               "Invalid '" + body->PathOf(key) + "': empty. Expected " +
                   std::string(kCacheLifetimeGrammar) + ".");
  }
  return text.value_or("");
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

}  // namespace

void ReadSampling(ObjectReader* body, ChatBody* result) {
  static const std::vector<std::string_view> kModes = {"auto", "strict", "rejection"};
  static const std::vector<std::string_view> kLogprobs = {"raw", "processed"};
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
  result->n = body->Integer("n", 0, kMaxChoices);
  result->seed = ReadSeed(body);
  if (auto mode = body->OneOf("sampling_mode", kModes)) {
    result->sampling_mode = static_cast<SamplingMode>(*mode);
  }
  ReadLogitBias(body, result);
  ReadStop(body, result);
  ReadIntegers(body, "stop_token_ids", &result->stop_token_ids);
  ReadIntegers(body, "allowed_token_ids", &result->allowed_token_ids);
  ReadIntegers(body, "banned_token_ids", &result->banned_token_ids);
  ReadWords(body, "bad_words", &result->bad_words);
  if (auto kind = body->OneOf("logprobs_mode", kLogprobs)) {
    result->logprobs_kind = static_cast<LogprobsKind>(*kind);
  }
  result->include_stop_str_in_output = body->Bool("include_stop_str_in_output");
  result->ignore_eos = body->Bool("ignore_eos");
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
  labels->prompt_cache_retention = ReadLifetime(body, "prompt_cache_retention");
  if (auto cache = body->Object("prompt_cache_options")) {
    if (auto mode = cache->OneOf("mode", kCacheModes)) {
      labels->prompt_cache_mode = kCacheModes[*mode];
    }
    labels->prompt_cache_ttl = ReadLifetime(&*cache, "ttl");
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

}  // namespace deepinfer
