#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "server/cache_controls.h"
#include "server/chat_convert.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxLabelBytes = 512;
constexpr size_t kMaxLogitBiasEntries = 1024;
constexpr double kMaxLogitBias = 100;
constexpr size_t kMaxBadWords = 128;
constexpr int64_t kMaxChoices = 128;
// The hosted service never samples reasoning with less.
constexpr float kDeepSeekMinTopP = 0.95f;

Refusal OutOfRange(std::string_view name, std::string_view range) {
  return Refuse(std::string(name),
                fmt::format("Invalid {0} value, the valid range of {0} is {1}", name, range));
}

// Reads a number as the 32-bit float the sampler works with; the range is checked on that float.
template <typename InRange>
Refusal ReadFloat(const std::optional<double>& given, std::string_view name, std::string_view range,
                  InRange in_range, float* out) {
  if (!given) return std::nullopt;
  const auto value = static_cast<float>(*given);
  if (!in_range(value)) return OutOfRange(name, range);
  *out = value;
  return std::nullopt;
}

Refusal ReadPenalties(const ChatBody& body, SamplingParams* sampling) {
  auto symmetric = [](float value) { return value >= -2 && value <= 2; };
  if (Refusal refusal = ReadFloat(body.presence_penalty, "presence_penalty", "[-2, 2]", symmetric,
                                  &sampling->presence_penalty)) {
    return refusal;
  }
  if (Refusal refusal = ReadFloat(body.frequency_penalty, "frequency_penalty", "[-2, 2]", symmetric,
                                  &sampling->frequency_penalty)) {
    return refusal;
  }
  return ReadFloat(
      body.repetition_penalty, "repetition_penalty", "(0, 2]",
      [](float value) { return value > 0 && value <= 2; }, &sampling->repetition_penalty);
}

Refusal ReadTruncation(const ChatBody& body, SamplingParams* sampling) {
  if (Refusal refusal = ReadFloat(
          body.temperature, "temperature", "[0, 2]",
          [](float value) { return value >= 0 && value <= 2; }, &sampling->temperature)) {
    return refusal;
  }
  if (Refusal refusal = ReadFloat(
          body.top_p, "top_p", "(0, 1.0]", [](float value) { return value > 0 && value <= 1; },
          &sampling->top_p)) {
    return refusal;
  }
  if (Refusal refusal = ReadFloat(
          body.min_p, "min_p", "[0, 1]", [](float value) { return value >= 0 && value <= 1; },
          &sampling->min_p)) {
    return refusal;
  }
  const int64_t top_k = body.top_k.value_or(0);
  if (top_k < -1) return OutOfRange("top_k", "-1, 0 (both off) or at least 1");
  sampling->top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  return std::nullopt;
}

Refusal ReadLogprobs(const ChatBody& body, const ChatRequestOptions& options,
                     ChatRequest* request) {
  request->logprobs = body.logprobs.value_or(false);
  if (body.top_logprobs) {
    if (!request->logprobs) {
      return Refuse("top_logprobs",
                    "Invalid top_logprobs and logprobs value, logprobs must be set to true if "
                    "top_logprobs is used.");
    }
    if (*body.top_logprobs > options.max_top_logprobs) {
      return Refuse("top_logprobs", fmt::format("Invalid top_logprobs value, the valid range of "
                                                "top_logprobs is [0, {}].",
                                                options.max_top_logprobs));
    }
    request->top_logprobs = static_cast<int32_t>(*body.top_logprobs);
  }
  if (request->logprobs) request->sampling.num_top_logprobs = request->top_logprobs.value_or(0);
  return std::nullopt;
}

Refusal ReadMaxTokens(const ChatBody& body, const ChatRequestOptions& options,
                      ChatRequest* request) {
  const bool is_new_name = body.max_completion_tokens.has_value();
  const std::optional<int64_t>& given = is_new_name ? body.max_completion_tokens : body.max_tokens;
  const int32_t limit = request->conversation.thinking ? options.max_tokens_limit_thinking
                                                       : options.max_tokens_limit_plain;
  if (!given) return std::nullopt;
  // Messages clients warm the cache with 0; on the other routes it is more likely a mistake.
  const bool takes_zero =
      options.allow_zero_max_tokens || (body.clips_max_tokens && options.messages_extensions);
  const int64_t smallest = takes_zero ? 0 : 1;
  if (*given < smallest || (*given > limit && !body.clips_max_tokens)) {
    // Every dialect calls it max_tokens in the text.
    Refusal refusal = OutOfRange(is_new_name ? "max_completion_tokens" : "max_tokens",
                                 fmt::format("[{}, {}]", smallest, limit));
    if (!is_new_name) refusal->param = body.max_tokens_name;
    return refusal;
  }
  request->max_tokens = static_cast<int32_t>(std::min<int64_t>(*given, limit));
  return std::nullopt;
}

Refusal ReadLogitBias(const ChatBody& body, const ChatRequestOptions& options,
                      SamplingParams* sampling) {
  if (body.logit_bias.size() > kMaxLogitBiasEntries) {
    return Refuse("logit_bias", fmt::format("Invalid 'logit_bias': at most {} entries, but got {}.",
                                            kMaxLogitBiasEntries, body.logit_bias.size()));
  }
  for (const auto& [key, bias] : body.logit_bias) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_number = error == std::errc() && end == key.data() + key.size();
    if (!is_number || id < 0 || id >= options.vocab_size) {
      return Refuse("logit_bias", fmt::format("Invalid 'logit_bias': '{}' is not a token id in "
                                              "[0, {}).",
                                              key, options.vocab_size));
    }
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias)) {
      return Refuse("logit_bias", fmt::format("Invalid 'logit_bias': the bias of token {} is not "
                                              "in [-100, 100].",
                                              id));
    }
    sampling->logit_bias.emplace_back(id, static_cast<float>(bias));
  }
  return std::nullopt;
}

Refusal ReadIds(std::string_view name, const std::vector<int64_t>& given,
                const ChatRequestOptions& options, std::vector<int32_t>* ids) {
  for (int64_t id : given) {
    if (id < 0 || id >= options.vocab_size) {
      return Refuse(std::string(name), fmt::format("Invalid '{}': {} is not a token id in [0, {}).",
                                                   name, id, options.vocab_size));
    }
    ids->push_back(static_cast<int32_t>(id));
  }
  return std::nullopt;
}

Refusal ReadTokenLists(const ChatBody& body, const ChatRequestOptions& options,
                       ChatRequest* request) {
  SamplingParams& sampling = request->sampling;
  if (Refusal refusal =
          ReadIds("stop_token_ids", body.stop_token_ids, options, &sampling.stop_token_ids)) {
    return refusal;
  }
  if (Refusal refusal =
          ReadIds("allowed_token_ids", body.allowed_token_ids, options, &sampling.allowed_ids)) {
    return refusal;
  }
  if (Refusal refusal =
          ReadIds("banned_token_ids", body.banned_token_ids, options, &sampling.banned_ids)) {
    return refusal;
  }
  if (body.bad_words.size() > kMaxBadWords) {
    return Refuse("bad_words", fmt::format("Invalid 'bad_words': at most {} words.", kMaxBadWords));
  }
  for (const std::string& word : body.bad_words) {
    if (word.empty() || word.size() > kMaxLabelBytes) {
      return Refuse("bad_words",
                    fmt::format("Invalid 'bad_words': words have 1 to {} bytes.", kMaxLabelBytes));
    }
  }
  request->bad_words = body.bad_words;
  return std::nullopt;
}

// The hosted service replaces what the client asked for (api.md §3). The two models differ in
// top_p: V4 fixes it while it thinks, V4.1 while it does not.
void ApplyDeepSeekPolicy(const Conversation& conversation, bool has_top_p,
                         SamplingParams* sampling) {
  const bool is_v4 = conversation.form == PromptForm::kV4;
  if (!conversation.thinking) {
    if (!is_v4) sampling->top_p = 1;
    return;
  }
  sampling->temperature = 1;
  sampling->frequency_penalty = 0;
  sampling->presence_penalty = 0;
  sampling->repetition_penalty = 1;
  if (is_v4) {
    sampling->top_p = conversation.tools_in_effect() ? kDeepSeekMinTopP : 1.0f;
  } else if (has_top_p) {
    sampling->top_p = std::max(sampling->top_p, kDeepSeekMinTopP);
  }
}

Refusal CheckCacheLifetimes(const RequestLabels& labels) {
  auto parse = [](const std::string& text, std::string_view param,
                  std::optional<int64_t>* seconds) -> Refusal {
    if (text.empty()) return std::nullopt;
    *seconds = ParseCacheLifetimeSeconds(text);
    if (*seconds) return std::nullopt;
    return Refuse(std::string(param), fmt::format("Invalid '{}': '{}'. Expected {}.", param, text,
                                                  kCacheLifetimeGrammar));
  };
  std::optional<int64_t> longest;
  std::optional<int64_t> shortest;
  if (Refusal refusal = parse(labels.prompt_cache_retention, "prompt_cache_retention", &longest)) {
    return refusal;
  }
  if (Refusal refusal = parse(labels.prompt_cache_ttl, "prompt_cache_options.ttl", &shortest)) {
    return refusal;
  }
  if (longest && shortest && *shortest > *longest) {
    return Refuse("prompt_cache_options.ttl",
                  "prompt_cache_options.ttl is longer than prompt_cache_retention");
  }
  return std::nullopt;
}

}  // namespace

Refusal ConvertStop(const ChatBody& body, const ChatRequestOptions& options, ChatRequest* request) {
  if (body.stop.size() > kMaxStopStrings) {
    return Refuse("stop", fmt::format("Stop string array too long: {}", body.stop.size()));
  }
  for (size_t i = 0; i < body.stop.size(); ++i) {
    const std::string path = body.stop_is_array ? fmt::format("stop[{}]", i) : "stop";
    if (body.stop[i].empty()) {
      return Refuse(path, fmt::format("Invalid '{}': empty string. Expected a string with minimum "
                                      "length 1, but got an empty string instead.",
                                      path));
    }
    if (body.stop[i].size() > options.max_stop_bytes) {
      return Refuse(path, fmt::format("Invalid '{}': string too long. Expected at most {} bytes.",
                                      path, options.max_stop_bytes));
    }
  }
  request->parsing.stop_sequences = body.stop;
  request->parsing.include_stop_in_output = body.include_stop_str_in_output.value_or(false);
  request->parsing.num_tokens_without_stop = body.min_tokens.value_or(0);
  return std::nullopt;
}

Refusal ConvertStream(const ChatBody& body, ChatRequest* request) {
  request->stream = {body.stream.value_or(false), body.include_usage, body.continuous_usage_stats};
  if (body.has_stream_options && !request->stream.stream) {
    return Refuse("stream_options", "stream_options should be set along with stream = true");
  }
  return std::nullopt;
}

Refusal ConvertSampling(const ChatBody& body, const ChatRequestOptions& options,
                        ChatRequest* request) {
  SamplingParams& sampling = request->sampling;
  const int64_t n = body.n.value_or(1);
  if (n < 1 || n > kMaxChoices) return OutOfRange("n", fmt::format("[1, {}]", kMaxChoices));
  request->num_choices = static_cast<int32_t>(n);
  if (Refusal refusal = ReadPenalties(body, &sampling)) return refusal;
  if (Refusal refusal = ReadTruncation(body, &sampling)) return refusal;
  if (Refusal refusal = ReadLogprobs(body, options, request)) return refusal;
  if (Refusal refusal = ReadMaxTokens(body, options, request)) return refusal;
  if (body.seed) {
    if (*body.seed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return OutOfRange("seed", "[0, 2^63)");
    }
    sampling.seed = *body.seed;
    sampling.has_seed = true;
  }
  if (Refusal refusal = ReadLogitBias(body, options, &sampling)) return refusal;
  if (Refusal refusal = ReadTokenLists(body, options, request)) return refusal;
  sampling.mode = body.sampling_mode.value_or(options.default_sampling_mode);
  sampling.min_tokens = static_cast<int32_t>(body.min_tokens.value_or(0));
  sampling.ignore_eos = body.ignore_eos.value_or(false);
  sampling.logprobs_kind = body.logprobs_kind.value_or(options.default_logprobs_kind);
  if (options.sampling_policy == SamplingPolicy::kDeepSeek) {
    ApplyDeepSeekPolicy(request->conversation, body.top_p.has_value(), &sampling);
  }
  return std::nullopt;
}

Refusal ConvertLabels(const ChatBody& body, ChatRequest* request) {
  const RequestLabels& labels = body.labels;
  const std::pair<std::string_view, const std::string*> bounded[] = {
      {"user", &labels.user},
      {"safety_identifier", &labels.safety_identifier},
      {"user_id", &labels.user_id},
      {"cache_salt", &labels.cache_salt},
      {"prompt_cache_key", &labels.prompt_cache_key},
      {"request_id", &labels.request_id},
      {"session_id", &labels.session_id},
  };
  for (const auto& [name, value] : bounded) {
    if (value->size() > kMaxLabelBytes) {
      return Refuse(std::string(name),
                    fmt::format("Invalid '{}': string too long. Expected at most {} bytes.", name,
                                kMaxLabelBytes));
    }
  }
  if (Refusal refusal = CheckCacheLifetimes(labels)) return refusal;
  if (body.wants_audio) {
    return Refuse("modalities", "Audio output is not supported", "unsupported_parameter");
  }
  request->labels = labels;
  for (const BodyMessage& message : body.messages) {
    for (const BodyPart& part : message.parts) {
      request->labels.num_cache_breakpoints += part.cache_breakpoint;
    }
  }
  request->test_hooks = body.test_hooks;
  request->return_token_ids = body.return_token_ids;
  request->echo = body.echo;
  request->add_generation_prompt = body.add_generation_prompt;
  request->unknown_fields = body.unknown_fields;
  request->ignored_fields = body.ignored_fields;
  return std::nullopt;
}

}  // namespace deepinfer
