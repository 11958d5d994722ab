// What clients say about cached prompts (api.md §7): lifetimes as they write them, who shares, and
// what may be kept on disk. Hosted values change often; this is the one table.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "kvcache/keys.h"

namespace deepinfer {

struct ApiKey;
struct RequestLabels;

// Places a request may mark.
inline constexpr int32_t kMaxCacheMarks = 4;

inline constexpr std::string_view kCacheLifetimeGrammar =
    "in_memory, in-memory, or an integer followed by m, h or d";

// Seconds; 0 for in_memory. Nothing if the text does not fit the grammar.
std::optional<int64_t> ParseCacheLifetimeSeconds(std::string_view text);

inline constexpr int64_t kNoTtlCap = std::numeric_limits<int64_t>::max();

// What the operator allows.
struct CacheControlOptions {
  RetentionClass default_class = RetentionClass::kChat;
  // Hours after a use, by class; 0 for ever.
  std::array<int64_t, kNumRetentionClasses> ttl_hours = {6, 72, 168, 0};
  int64_t min_ttl_cap_s = kNoTtlCap;
  int64_t max_ttl_cap_s = kNoTtlCap;
};

// Whose quota a request counts to and whose cache it sees: the namespace of its key; "" for
// requests without a key.
std::string CacheTenant(const ApiKey* key);

// The same as files and quotas name it.
uint64_t CacheTenantTag(std::span<const uint8_t> secret, const ApiKey* key);

// Requests with equal scopes may share cached prefixes: those of one tenant, narrowed by what the
// client says about its users. secret keeps scopes from being guessed.
KvScope CacheScope(std::span<const uint8_t> secret, const ApiKey* key, const RequestLabels& labels);

// Class and lifetime in the persistent cache. The class is that of the key, of the route (batch),
// or the first one that lives as long as the request's ttl. Lifetimes too short for the grain of
// the disk, in_memory, and explicit mode without a marked place keep the request in memory.
CacheRetention MakeCacheRetention(const CacheControlOptions& options,
                                  std::span<const uint8_t> secret, const ApiKey* key,
                                  const RequestLabels& labels, bool is_batch);

}  // namespace deepinfer
