// This process among the others that share a namespace: its sign of life, what peers have stored,
// and the folders of those that died (kv_format.md §21).
//
// There is no master. Every process reads all folders and writes below those it owns; the only
// atomic operations are making and renaming a folder.
// Thread rule: Step on one thread; Join and Peers from any, one lock. Owner: the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvcache/erasure.h"
#include "kvcache/janitor.h"
#include "kvcache/lease.h"
#include "kvcache/peer_log.h"
#include "kvcache/store_context.h"
#include "kvcache/store_folders.h"

namespace deepinfer {

struct PeerView {
  std::string folder;
  int64_t lag_us = 0;  // since its log was last read to the end
};

class SharedFolders {
 public:
  SharedFolders(StoreContext* context, Janitor* janitor, Eraser* eraser,
                std::string namespace_folder);
  void UseWriter(WriteBehind* writes) { writes_ = writes; }

  // Takes no part: follows the folders of others without one of its own, whether they share or not.
  void OnlyRead() { only_reads_ = true; }
  // From now on this is our folder: writes its lease.
  Status Join(const std::string& folder_name, uint64_t epoch);
  // A folder whose owner is certainly gone: an earlier process of this node on this host.
  bool IsOurEarlier(const EpochFolder& folder) const;
  // Takes the folder over; false when another process was faster. Loads its segments.
  bool Adopt(const EpochFolder& folder);

  // Our folders have become a peer's: the logs are read again from the begin, because blocks that
  // were ours are to be found there now.
  void ReadAgain() { read_again_ = true; }

  // What is due: renew the lease, read the logs of peers, look for new folders and dead owners.
  void Step();
  // When the next thing is due, on the store's clock; of the thread that calls Step.
  int64_t NextStepUs() const;
  std::vector<PeerView> Peers() const;

 private:
  void RenewLeaseIfDue();
  void FollowPeers();
  void FollowPeersIfDue();
  void ScanFolders();
  void AdoptDead(const std::vector<EpochFolder>& folders);
  bool IsDead(const std::string& owner, const std::vector<EpochFolder>& folders);
  // Makes what a folder with our name on it holds our own; after an error it is to be tried again.
  Status Finish(const std::string& base_name, const std::string& path);
  void FinishAdoptions();
  void DropPeer(const std::string& base_name);
  void SweepGone();
  std::string OwnName() const;

  StoreContext* context_;
  Janitor* janitor_;
  Eraser* eraser_;
  WriteBehind* writes_ = nullptr;
  const std::string namespace_folder_;
  const std::string boot_id_;

  mutable std::mutex mutex_;  // guards the next three
  std::string own_name_;
  LeaseRecord lease_;
  std::vector<PeerView> views_;  // lag_us holds the time until it is asked for
  std::map<std::string, std::unique_ptr<PeerLog>> peers_;  // by "node-epoch"
  std::map<std::string, std::string> unfinished_;          // adoptions, the same names to paths
  std::set<std::string> behind_;                           // adopted folders that lack erasures
  bool only_reads_ = false;                                // set before the first step
  std::atomic<bool> read_again_{false};
  LeaseWatch watch_;
  std::set<uint32_t> gone_;  // removed segments that index entries may still point to
  int64_t renew_us_ = 0;
  int64_t follow_us_ = 0;
  int64_t scan_us_ = 0;
  int64_t sweep_us_ = 0;
};

}  // namespace deepinfer
