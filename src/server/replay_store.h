// The turns with tool calls that this server sampled, by who may see them and the id of a call
// (api.md §7, exact replay). Bounded by count, bytes and age; the oldest go first.
// Thread rule: any thread. Owner: server/server_state.h.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/sha256.h"

namespace deepinfer {

struct ReplayLimits {
  size_t max_ids = 100'000;
  // Room for all ids at some 600 tokens a turn.
  size_t max_bytes = size_t{256} << 20;
  int64_t max_age_us = int64_t{7} * 24 * 3600 * 1'000'000;
};

// Tokens from behind a turn's header to its end token.
using SampledIds = std::shared_ptr<const std::vector<int32_t>>;

class ReplayStore {
 public:
  explicit ReplayStore(const Clock& clock, ReplayLimits limits = {});

  // One turn under the ids of all its calls.
  void Keep(const Sha256Digest& scope, const std::vector<std::string>& call_ids,
            std::vector<int32_t> ids);
  // The turn that this call belongs to; null when it is not known in this scope.
  SampledIds Find(const Sha256Digest& scope, std::string_view call_id) const;

  size_t num_ids() const;
  size_t num_bytes() const;

 private:
  struct Entry {
    SampledIds ids;
    int64_t kept_us = 0;
    size_t num_bytes = 0;
  };

  static std::string KeyOf(const Sha256Digest& scope, std::string_view call_id);
  void DropOld(int64_t now_us);  // under mutex_

  const Clock& clock_;
  const ReplayLimits limits_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<std::string> order_;  // keys, the oldest first
  size_t num_bytes_ = 0;
};

}  // namespace deepinfer
