// Erasing for good: blocks leave the index at once, the logs say so for every later reader, and the
// janitor rewrites the segments without them (kv_format.md §19, §21).
//
// Each folder's log has to hold the erasure behind the blocks it means. A process writes only to
// the logs of folders it owns, so owners repeat in their logs what they read in those of others.
// Thread rule: any thread, one lock; file operations run under it. Owner: the store.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache/janitor.h"
#include "kvcache/store_context.h"

namespace deepinfer {

class Eraser {
 public:
  Eraser(StoreContext* context, Janitor* janitor) : context_(context), janitor_(janitor) {}
  // Where blocks may still be on their way.
  void UseWriter(WriteBehind* writes) { writes_ = writes; }

  // The number of blocks that were in the index.
  Result<int64_t> EraseKeys(std::span<const BlockKey> keys);
  Result<int64_t> EraseTenant(uint64_t tenant_tag);

  // The log of `folder` holds this erasure: it means the folder's blocks before it, unless those
  // were left out already, and the blocks of every other folder that has not heard of it. Returns
  // blocks taken out of the index.
  int64_t Heard(const std::string& folder, const IndexEntry& erasure, bool means_folder);
  // A folder has another name now, with the same log.
  void MoveFolder(const std::string& from, const std::string& to);
  // Says in the log of a folder that has become ours every erasure that it has not heard of.
  Status CatchUp(const std::string& folder);
  // The same in the log of a new folder, after a peer took over those in which they were said:
  // that one may have read its copies before.
  Status Repeat(IndexLog* log);
  // Says what could not be said before.
  void SayUnsaid();
  // Erasures that the process knows and this log does not hold: its owner has yet to hear of them.
  std::vector<IndexEntry> Unheard(const std::string& folder, std::span<const IndexEntry> log);

 private:
  // Two erasures of one key at different times are different.
  using Identity = std::tuple<uint8_t, BlockKey, uint64_t, uint32_t>;
  static Identity IdentityOf(const IndexEntry& erasure) {
    return {erasure.op, erasure.key, erasure.tenant_tag, erasure.page};
  }

  Result<int64_t> Apply(const IndexEntry& erasure);
  void NoteForLoading(const IndexEntry& erasure);
  // Notes the erasure in the log of an owned folder, now or later.
  Status Say(const std::string& folder, const IndexEntry& erasure);
  // Takes what the erasure means out of the index, as far as it lies in these folders.
  int64_t Forget(const IndexEntry& erasure, const std::set<std::string>& folders);
  void RewriteOwned(const IndexEntry& erasure, const std::set<std::string>& folders);

  StoreContext* context_;
  Janitor* janitor_;
  WriteBehind* writes_ = nullptr;
  std::mutex mutex_;
  std::map<std::string, std::set<Identity>> heard_;  // by folder
  std::map<Identity, IndexEntry> known_;
  std::set<std::pair<std::string, Identity>> unsaid_;  // the log of the folder did not take it
};

}  // namespace deepinfer
