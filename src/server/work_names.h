// What clients name by Idempotency-Key: a key stands for one request body for a while
// (docs/api.md §14).
// Thread rule: any thread. Owner: ServerState.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/sha256.h"

namespace deepinfer {

class WorkNames {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Claimed {
    Sha256Digest work{};
    bool is_new = false;  // the key stood for nothing before
  };

  // Digest of the work that a request asks for, the same in every process. A tenant is the name of
  // an API key.
  static Sha256Digest WorkOf(std::string_view tenant, std::string_view key, std::string_view route,
                             std::string_view body);

  // Binds the key to this work; nothing when the tenant used it for another route or body lately.
  std::optional<Claimed> Claim(std::string_view tenant, std::string_view key,
                               std::string_view route, std::string_view body, Time now);

  // The request that made a new claim was refused: its key is free again.
  void Release(std::string_view tenant, std::string_view key, const Sha256Digest& work);

  // Keys remembered.
  size_t size() const;

  static constexpr std::chrono::minutes kMemory{15};
  // About 12 MB; beyond, the oldest is forgotten.
  static constexpr size_t kMost = 65536;

 private:
  struct Use {
    Sha256Digest work;
    Time last;
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Use> uses_;  // by digest of tenant and key
  std::deque<std::pair<Time, std::string>> ages_;
};

// The name of one choice of the work, as workers know it, and the seed of its draws where the
// client chose none: a retry is then given the same answer. The prompt is part of the name: a
// process that makes another one of the same body (docs/cluster.md §4) must not go on with the
// answer to this one.
struct ChoiceOfWork {
  std::string work_id;
  uint64_t seed = 0;
};
ChoiceOfWork MakeChoiceOfWork(const Sha256Digest& work, size_t choice,
                              std::span<const int32_t> prompt_ids);

}  // namespace deepinfer
