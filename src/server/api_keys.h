// API keys: who may call, kept as SHA-256 digests only (api.md §19).
// Thread rule: immutable after load, except the counters and rates of a key, which any thread uses.
// Owner: server/server_state.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "economics/money.h"
#include "kvcache/format.h"
#include "server/rate_limit.h"

namespace deepinfer {

struct ApiKey {
  std::string name;  // the only thing of a key that logs and ledgers show
  std::array<unsigned char, 32> digest{};
  std::string cache_namespace;                // "": the key's own
  std::optional<RetentionClass> cache_class;  // in the persistent cache; nothing: by request
  std::vector<std::string> allowed_models;    // empty: all
  int32_t max_concurrent_requests = 0;        // 0: no limit
  mutable RateLimit request_rate;             // of generating requests
  mutable RateLimit token_rate;               // prompt and generated ones
  std::optional<Pico> budget;                 // it may spend, in the currency of the price book
  int64_t budget_from_us = 0;                 // UTC: what was spent before does not count
  bool admin = false;
  mutable std::atomic<int32_t> running_requests{0};

  bool AllowsModel(std::string_view model) const;
};

class ApiKeys {
 public:
  // file: JSON {"keys":[{"name", "sha256" (hex) or "key", "namespace", "cache_class", "models",
  // "admin", "max_concurrent_requests", "max_requests_per_minute", "max_tokens_per_minute",
  // "budget", "budget_from"}]}, or plain text with one key a line and # comments; "" for none.
  // secrets: further keys. Errors: not_found, invalid_request naming the entry, never its value.
  static Result<ApiKeys> Load(const std::string& file, const std::vector<std::string>& secrets);

  bool empty() const { return keys_.empty(); }
  const std::vector<std::unique_ptr<ApiKey>>& all() const { return keys_; }

  // Key with this secret, or null. Takes the same time whichever key matches.
  const ApiKey* Find(std::string_view secret) const;

 private:
  Status Add(std::unique_ptr<ApiKey> key);
  Status AddSecret(std::string name, std::string_view secret);
  Status ParseJsonFile(std::string_view text);
  Status ParseLines(std::string_view text);

  std::vector<std::unique_ptr<ApiKey>> keys_;
};

}  // namespace deepinfer
