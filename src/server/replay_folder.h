// The turns of the replay record in files beside the persistent cache, so that they outlive the
// process and other servers with the same folder find them (docs/api.md section 7).
//
// A turn is a file of its own for the id of each of its calls, below a folder of its tenant:
// looking one up is opening it, and erasing a tenant is removing the folder. Files are written
// under another name first; half of one is no turn.
// Thread rule: any thread; writing and sweeping happen on a thread of its own. Owner:
// server/server_state.h, through ReplayStore.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"

namespace deepinfer {

struct ReplayFolderOptions {
  std::string folder;
  size_t max_files = 100'000;
  int64_t max_age_s = int64_t{7} * 24 * 3600;
  size_t max_queued_bytes = size_t{64} << 20;
  // Seconds since 1970; the system's clock by default.
  std::function<int64_t()> utc_now_s{};
};

// Whose a turn is.
struct ReplayOwner {
  Sha256Digest scope{};     // who may find it
  uint64_t tenant_tag = 0;  // whose it is to erase
};

struct KeptTurn {
  std::vector<int32_t> ids;
  int64_t deadline_s = 0;  // seconds since 1970
};

class ReplayFolder {
 public:
  // Makes the folder, for its owner only. unavailable when it cannot be used.
  static Result<std::unique_ptr<ReplayFolder>> Open(ReplayFolderOptions options);
  // Writes what is queued.
  ~ReplayFolder();
  ReplayFolder(const ReplayFolder&) = delete;
  ReplayFolder& operator=(const ReplayFolder&) = delete;

  // Never blocks on the disk; a full queue drops the turn. lifetime_s: shorter than max_age_s, or
  // 0.
  void Keep(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
            std::shared_ptr<const std::vector<int32_t>> ids, int64_t lifetime_s);

  // Reads one file; nothing when it is not there, old or damaged.
  std::optional<KeptTurn> Find(const ReplayOwner& owner, std::string_view call_id) const;

  // Seconds since 1970 when the tenant was erased: turns kept until then are gone, wherever they
  // are. 0: never.
  int64_t ErasedAt(uint64_t tenant_tag) const;

  int64_t NowS() const { return options_.utc_now_s(); }

  // Waits until everything so far is written or dropped.
  void Flush();

  int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }

 private:
  struct Turn {
    ReplayOwner owner;
    std::vector<std::string> call_ids;
    std::shared_ptr<const std::vector<int32_t>> ids;
    int64_t deadline_s = 0;
    size_t num_bytes = 0;
  };

  explicit ReplayFolder(ReplayFolderOptions options);

  void Loop();
  bool Write(const Turn& turn) const;
  // Removes old files, and the oldest beyond the most.
  void Sweep() const;

  const ReplayFolderOptions options_;
  std::atomic<int64_t> num_dropped_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Turn> queue_;   // under mutex_
  size_t queued_bytes_ = 0;  // under mutex_
  bool writing_ = false;     // under mutex_
  bool stopping_ = false;    // under mutex_
  std::thread thread_;
};

// Removes every turn of a tenant from the folder, also while servers use it, which then forget what
// they have in memory; the number of files. A folder that is not there has none.
Result<int64_t> EraseKeptTurns(const std::string& folder, uint64_t tenant_tag);

}  // namespace deepinfer
