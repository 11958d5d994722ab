// The prompts of the newest requests, to tell where one parts from those before it: why a prefix
// was not found in the cache. Only with --debug-endpoints (api.md §2, /debug/prefix). Thread rule:
// any thread. Owner: server/server_state.h.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace deepinfer {

struct PrefixReport {
  std::vector<int32_t> prompt_ids;
  int64_t cached_tokens = -1;  // -1: not known yet
  int64_t replayed_tokens = -1;
  // The earlier request of the same scope that shares the longest prefix; "": none shares a token.
  std::string nearest_request_id;
  std::vector<int32_t> nearest_ids;
  int64_t num_common = 0;  // tokens
};

class PrefixLog {
 public:
  void Begin(const std::string& request_id, const Sha256Digest& scope,
             const std::vector<int32_t>& prompt_ids);
  // What the cache had of it. Ignored for a request that is not kept any more.
  void End(std::string_view request_id, int64_t cached_tokens, int64_t replayed_tokens);
  // Nothing for a request that is not kept.
  std::optional<PrefixReport> Report(std::string_view request_id) const;

 private:
  struct Entry {
    std::string request_id;
    Sha256Digest scope;
    std::vector<int32_t> prompt_ids;
    int64_t cached_tokens = -1;
    int64_t replayed_tokens = -1;
  };

  // The newest of this id, as an index; entries_.size() without. Under mutex_.
  size_t Find(std::string_view request_id) const;

  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  // the oldest first
  size_t num_tokens_ = 0;
};

}  // namespace deepinfer
