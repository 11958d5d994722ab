// What clients name by Idempotency-Key: a key stands for one request body for a while
// (docs/api.md §14).
// Thread rule: any thread. Owner: ServerState.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/sha256.h"

namespace deepinfer {

class WorkNames {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Digest of the work that the request asks for, the same in every process; nothing when the
  // tenant used the key for another route or body lately. A tenant is the name of an API key.
  std::optional<Sha256Digest> Claim(std::string_view tenant, std::string_view key,
                                    std::string_view route, std::string_view body, Time now);

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
// client chose none: a retry is then given the same answer.
struct ChoiceOfWork {
  std::string work_id;
  uint64_t seed = 0;
};
ChoiceOfWork MakeChoiceOfWork(const Sha256Digest& work, size_t choice);

}  // namespace deepinfer
