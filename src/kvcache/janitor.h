// Keeps a store within its promises and its space: expiry, copying forward, eviction under
// pressure, the touch log (kv_format.md §19). Works only on folders that this process owns.
// Thread rule: one thread, or the caller's. Owner: the store.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kvcache/block_load.h"
#include "kvcache/store_context.h"
#include "kvcache/touch_log.h"
#include "kvcache/write_behind.h"

namespace deepinfer {

// What the janitor did, or would do, with a segment.
struct JanitorAction {
  std::string path;
  std::string action;  // "remove", "copy_forward", "move_bucket", "wait", "drop_blocks"
  std::string reason;  // "expired", "pressure", "erased", "quota"
  int64_t live_records = 0;
  int64_t records = 0;
};

class Janitor {
 public:
  Janitor(StoreContext* context, BlockLoader* loader)
      : context_(context), loader_(loader), touch_log_(context) {}
  // Where copies go; before the first round.
  void UseWriter(WriteBehind* writes) { writes_ = writes; }

  // One round over all owned segments.
  std::vector<JanitorAction> Step();
  // What a round would do now, without doing it.
  std::vector<JanitorAction> Plan();
  // Evicts by value until at least this share of the space is free, or will be when the copies of
  // blocks that are worth it are made.
  std::vector<JanitorAction> FreeSpace(double free_share, bool dry_run);

  // Counts a use for the touch log.
  void NoteTouch(const BlockLocation& location) { touch_log_.Note(location); }
  // Appends the uses since the last call to the logs of their folders, and reads those of peers.
  void ExchangeTouches();
  // The segments that hold these records must be rewritten without them.
  void RewriteSoon(uint32_t segment);
  // A folder of an owner that is gone, to be treated like our own.
  void Own(const std::string& folder);
  bool Owns(const std::string& folder) const;
  std::vector<std::string> OwnedFolders() const;
  // A peer has taken our folders over.
  void DisownAll();
  // Notes an erasure in the log of an owned folder.
  Status AppendErasure(const std::string& folder, const IndexEntry& erasure);

 private:
  struct Resident {
    IndexEntry entry;
    IndexedBlock indexed;
    uint32_t record = 0;
    bool live = false;  // inside its deadline
    double value = 0;   // of keeping it; nothing when it is not live
  };
  struct Survey {
    SegmentInfo info;
    KvBlockLayout layout;
    std::vector<Resident> residents;  // records that the index still points to
    int64_t num_live = 0;
    int64_t last_deadline_ns = 0;
    // False: read without a footer, so that the index may know of records that were not seen.
    bool is_complete = true;
  };

  Result<Survey> Look(const SegmentInfo& info, int64_t now_ns) const;
  // What the log of its folder says of a segment that cannot be read.
  Survey LookInLog(const SegmentInfo& info, int64_t now_ns) const;
  int64_t DeadlineNs(const IndexedBlock& block) const;
  // One round for one segment.
  void Tend(const SegmentInfo& info, int64_t now_ns, bool may_expire,
            std::vector<JanitorAction>* actions);
  std::vector<SegmentInfo> OwnedSealed() const;
  bool ExpiryFrozen(int64_t now_ns);
  void Expire(const SegmentInfo& info, int64_t now_ns, bool dry_run,
              std::vector<JanitorAction>* actions);
  // Removes a segment whose bucket is over and that could not be read, when that will not change.
  void RemoveIfLost(const SegmentInfo& info, StatusCode fault, int64_t now_ns);
  void ContinueDraining(const Survey& survey);
  bool MayMoveBucket(const Survey& survey);
  void CopyForward(const Survey& survey);
  void Remove(const Survey& survey);
  // Takes the least valuable blocks of tenants over a quota out of the index (janitor_quotas.cc).
  struct QuotaRound;
  void EnforceQuotas(int64_t now_ns, std::vector<JanitorAction>* actions);
  void GatherCandidates(int64_t now_ns, QuotaRound* round) const;
  void DropExcess(const QuotaExcess& excess, QuotaRound* round);
  void LogDropped(const QuotaRound& round);
  // Expected uses per minute of keeping a block; those of tenants over a quota have none.
  double ValueOf(const IndexedBlock& block, uint64_t tenant_tag, int64_t now_ns) const;
  double UsesPerMinute(const IndexedBlock& block, int64_t now_ns) const;
  // What pressure takes, and what it copies (janitor_pressure.cc).
  struct Removal;
  std::vector<Removal> PlanRemovals(int64_t room_blocks, bool may_copy, int64_t now_ns) const;
  void Carry(Removal* removal);
  bool IsShortOfSpace() const;
  // Files take more than the space: what copies would wait for cannot be waited for.
  bool IsOverfull() const;
  // Own segments that are not being emptied.
  int64_t NumStaying() const;
  // The block leaves the index; before its deadline that is a breach of its promise.
  void ForgetEvicted(const Resident& resident);
  Result<std::shared_ptr<IndexLog>> LogOf(const std::string& folder);

  StoreContext* context_;
  BlockLoader* loader_;
  WriteBehind* writes_ = nullptr;
  TouchLog touch_log_;
  mutable std::mutex mutex_;  // guards the members below
  std::set<std::string> owned_;
  std::map<std::string, std::shared_ptr<IndexLog>> logs_;
  // Expiry stands still until then after a jump of the calendar.
  int64_t frozen_until_us_ = 0;
  int64_t last_unix_ns_ = 0;
  int64_t last_us_ = 0;
  int64_t touches_exchanged_us_ = 0;
  int64_t strays_removed_us_ = 0;
  int64_t halved_us_ = 0;
};

}  // namespace deepinfer
