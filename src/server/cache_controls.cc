#include "server/cache_controls.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "kvcache/store_options.h"
#include "server/api_keys.h"
#include "server/chat_request.h"

namespace deepinfer {

namespace {

constexpr int64_t kSecondsAnHour = 3600;
// From the shortest-lived on.
constexpr std::array kClasses = {RetentionClass::kBatch, RetentionClass::kAgent,
                                 RetentionClass::kChat};

// The first class that lives at least so long, else the longest-lived.
RetentionClass ClassFor(const CacheControlOptions& options, int64_t lifetime_s) {
  for (const RetentionClass retention : kClasses) {
    if (options.ttl_hours[static_cast<size_t>(retention)] * kSecondsAnHour >= lifetime_s) {
      return retention;
    }
  }
  return kClasses.back();
}

RetentionClass ClassOf(const CacheControlOptions& options, const ApiKey* key,
                       const RequestLabels& labels, bool is_batch) {
  if (key != nullptr && key->cache_class) return *key->cache_class;
  if (const auto shortest_s = ParseCacheLifetimeSeconds(labels.prompt_cache_ttl)) {
    return ClassFor(options, std::min(*shortest_s, options.min_ttl_cap_s));
  }
  return is_batch ? RetentionClass::kBatch : options.default_class;
}

}  // namespace

std::optional<int64_t> ParseCacheLifetimeSeconds(std::string_view text) {
  constexpr int64_t kSecondsPerMinute = 60;
  constexpr int64_t kSecondsPerHour = 3600;
  constexpr int64_t kSecondsPerDay = 86400;
  constexpr int64_t kMaxCount = 1000000;  // keeps the product far from overflow

  if (text == "in_memory" || text == "in-memory") return 0;
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || count < 1 || count > kMaxCount) return std::nullopt;
  if (unit == "m") return count * kSecondsPerMinute;
  if (unit == "h") return count * kSecondsPerHour;
  if (unit == "d") return count * kSecondsPerDay;
  return std::nullopt;
}

std::string CacheTenant(const ApiKey* key) {
  if (key == nullptr) return {};
  return key->cache_namespace.empty() ? key->name : key->cache_namespace;
}

uint64_t CacheTenantTag(std::span<const uint8_t> secret, const ApiKey* key) {
  return TenantTag(secret, CacheTenant(key));
}

KvScope CacheScope(std::span<const uint8_t> secret, const ApiKey* key,
                   const RequestLabels& labels) {
  const std::pair<std::string_view, const std::string*> parts[] = {
      {"user", &labels.user},
      {"user_id", &labels.user_id},
      {"safety_identifier", &labels.safety_identifier},
      {"cache_salt", &labels.cache_salt},
  };
  std::string scope;
  for (const auto& [name, value] : parts) {
    if (value->empty()) continue;
    // The length keeps two different sets of labels from spelling one text.
    scope.append(name).append(" ").append(std::to_string(value->size()));
    scope.append("\n").append(*value).append("\n");
  }
  return KvScope::Tenant(secret, CacheTenant(key), scope);
}

CacheRetention MakeCacheRetention(const CacheControlOptions& options,
                                  std::span<const uint8_t> secret, const ApiKey* key,
                                  const RequestLabels& labels, bool is_batch) {
  CacheRetention result;
  result.tenant_tag = CacheTenantTag(secret, key);
  result.retention = ClassOf(options, key, labels, is_batch);
  result.persist = labels.prompt_cache_mode != "explicit" || labels.num_cache_breakpoints > 0;
  const int64_t longest_s =
      std::min(ParseCacheLifetimeSeconds(labels.prompt_cache_retention).value_or(kNoTtlCap),
               options.max_ttl_cap_s);
  if (longest_s / kSecondsAnHour >= options.ttl_hours[static_cast<size_t>(result.retention)]) {
    return result;
  }
  // The class with the finest buckets that lives long enough. A block goes with the bucket in which
  // its deadline lies, so the deadline is set one bucket early.
  result.retention = ClassFor(options, longest_s);
  const int64_t bucket_hours =
      KvStoreOptions().retention[static_cast<size_t>(result.retention)].bucket_hours;
  result.max_lifetime_hours = longest_s / kSecondsAnHour - bucket_hours;
  if (result.max_lifetime_hours < 1) result.persist = false;
  return result;
}

}  // namespace deepinfer
