// The turns with tool calls that were sampled, by who may see them and the id of a call (api.md §7,
// exact replay). In memory, bounded by count, bytes and age, the oldest go first; and in a folder
// where there is one.
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
#include "server/replay_folder.h"

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

  // From now on turns are kept there too, and those of others are found. At most once, before
  // anything else is called.
  void Use(std::unique_ptr<ReplayFolder> folder);

  // One turn under the ids of all its calls. persists: in the folder too; lifetime_s: there, 0 for
  // as long as it keeps them.
  void Keep(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
            std::vector<int32_t> ids, bool persists = true, int64_t lifetime_s = 0);
  // The turn that this call belongs to; null when it is not known in this scope. May read a file.
  SampledIds Find(const ReplayOwner& owner, std::string_view call_id) const;

  // Waits for the folder to have what was kept so far.
  void Flush();

  size_t num_ids() const;
  size_t num_bytes() const;

 private:
  struct Entry {
    SampledIds ids;
    int64_t until_us = 0;
    int64_t kept_utc_s = 0;  // with a folder
    size_t num_bytes = 0;
  };

  static std::string KeyOf(const Sha256Digest& scope, std::string_view call_id);
  void Enter(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
             const SampledIds& ids, int64_t lives_us) const;
  void DropOld(int64_t now_us) const;  // under mutex_

  const Clock& clock_;
  const ReplayLimits limits_;
  std::unique_ptr<ReplayFolder> folder_;  // may be null
  // What a look-up reads from the folder stays in memory like what was kept here. Under mutex_.
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Entry> entries_;
  mutable std::deque<std::string> order_;  // keys, the oldest first
  mutable size_t num_bytes_ = 0;
};

}  // namespace deepinfer
