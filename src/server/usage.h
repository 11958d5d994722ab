// Token account of one response as the client sees it (api.md §6), one writer per surface.
// Thread rule: values and pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "engine/request.h"

namespace deepinfer {

class JsonWriter;

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;       // part of prompt_tokens found in the cache
  int64_t cache_write_tokens = 0;  // part of prompt_tokens newly stored
  int64_t image_tokens = 0;        // part of prompt_tokens
  int64_t completion_tokens = 0;   // committed, end tokens included
  int64_t reasoning_tokens = 0;    // part of completion_tokens
  // Further parts of completion_tokens: calls with their markup, and markers that are never shown.
  int64_t tool_tokens = 0;
  int64_t control_tokens = 0;
  int64_t computed_tokens = 0;  // prompt rows run, replayed ones included
  int64_t replayed_tokens = 0;
  std::array<int64_t, kNumCacheTiers> cached_by_tier{};
  int64_t drafted_tokens = 0;
  int64_t draft_accepted_tokens = 0;
};

// Prompt side and computation of one choice's account; completion and reasoning are left alone.
void TakePromptCounters(const RequestCounters& counters, UsageCounts* usage);

// Adds the drafts of one choice.
void AddOutputCounters(const RequestCounters& counters, UsageCounts* usage);

// Value of "usage" for chat and completions: all fields, zeros included. `extension` adds
// usage.deepinfer.
void WriteOpenAiUsage(const UsageCounts& usage, bool extension, JsonWriter* json);

// "deepinfer": {...}, the member every surface has unless it is switched off.
void WriteUsageExtension(const UsageCounts& usage, JsonWriter* json);

// The form of the official conversion rules: without the extension and the fields that are always
// zero there; reasoning tokens only where they were counted.
void WriteReferenceUsage(const UsageCounts& usage, bool has_reasoning_tokens, JsonWriter* json);

}  // namespace deepinfer
