#include "server/usage.h"

#include "base/json_writer.h"

namespace deepinfer {
void WriteUsageExtension(const UsageCounts& usage, JsonWriter* json) {
  json->Key("deepinfer").BeginObject();
  json->Field("cached_tokens", usage.cached_tokens);
  json->Field("computed_tokens", usage.computed_tokens);
  json->Field("generated_tokens", usage.completion_tokens);
  json->Field("replayed_tokens", usage.replayed_tokens);
  json->Key("cached_by_tier").BeginObject();
  for (size_t tier = 0; tier < kNumCacheTiers; ++tier) {
    json->Field(CacheTierName(static_cast<CacheTier>(tier)), usage.cached_by_tier[tier]);
  }
  json->EndObject();
  json->Field("drafted_tokens", usage.drafted_tokens);
  json->Field("draft_accepted_tokens", usage.draft_accepted_tokens);
  json->EndObject();
}

void TakePromptCounters(const RequestCounters& counters, UsageCounts* usage) {
  usage->prompt_tokens = counters.prompt_tokens;
  usage->cached_tokens = counters.cached_tokens;
  usage->computed_tokens = counters.computed_tokens;
  usage->replayed_tokens = counters.replayed_tokens;
  usage->cached_by_tier = counters.cached_by_tier;
  usage->cache_write_tokens = counters.cache_written_tokens;
}

void AddOutputCounters(const RequestCounters& counters, UsageCounts* usage) {
  usage->drafted_tokens += counters.drafted_tokens;
  usage->draft_accepted_tokens += counters.draft_accepted_tokens;
}

void WriteOpenAiUsage(const UsageCounts& usage, bool extension, JsonWriter* json) {
  json->BeginObject();
  json->Field("prompt_tokens", usage.prompt_tokens);
  json->Field("completion_tokens", usage.completion_tokens);
  json->Field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json->Key("prompt_tokens_details").BeginObject();
  json->Field("cached_tokens", usage.cached_tokens);
  json->Field("cache_write_tokens", usage.cache_write_tokens);
  json->Field("image_tokens", usage.image_tokens);
  json->Field("text_tokens", usage.prompt_tokens - usage.image_tokens);
  json->Field("audio_tokens", int64_t{0});
  json->EndObject();
  json->Key("completion_tokens_details").BeginObject();
  json->Field("reasoning_tokens", usage.reasoning_tokens);
  json->Field("text_tokens", usage.completion_tokens - usage.reasoning_tokens);
  json->Field("audio_tokens", int64_t{0});
  json->Field("accepted_prediction_tokens", int64_t{0});
  json->Field("rejected_prediction_tokens", int64_t{0});
  json->EndObject();
  json->Field("prompt_cache_hit_tokens", usage.cached_tokens);
  json->Field("prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens);
  if (extension) WriteUsageExtension(usage, json);
  json->EndObject();
}

void WriteReferenceUsage(const UsageCounts& usage, bool has_reasoning_tokens, JsonWriter* json) {
  json->BeginObject();
  json->Field("prompt_tokens", usage.prompt_tokens);
  json->Field("completion_tokens", usage.completion_tokens);
  json->Field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json->Key("prompt_tokens_details").BeginObject();
  json->Field("cached_tokens", usage.cached_tokens);
  json->EndObject();
  if (has_reasoning_tokens) {
    json->Key("completion_tokens_details").BeginObject();
    json->Field("reasoning_tokens", usage.reasoning_tokens);
    json->EndObject();
  }
  json->Field("prompt_cache_hit_tokens", usage.cached_tokens);
  json->Field("prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens);
  json->EndObject();
}

}  // namespace deepinfer
