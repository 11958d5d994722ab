// Replaces the workers of a cluster on this machine by new processes, group by group: the new ones
// of a group take work before its old ones leave, so nothing waits and nothing is lost
// (docs/cluster.md §5).
// Thread rule: one thread. Owner: `deepinfer cluster up`.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/local_cluster.h"
#include "cluster/remote_worker.h"

namespace deepinfer {

class RollingRestart {
 public:
  // cluster and clock are borrowed. What was asked of an earlier one in the folder is dropped.
  // start_limit: for new workers to become ready.
  RollingRestart(LocalCluster* cluster, SecurityPtr security, std::chrono::seconds start_limit,
                 const Clock* clock);
  ~RollingRestart();

  // One look: begins what was asked for in the folder of the cluster, goes a step on. An error ends
  // the restart, not the cluster.
  void Turn();

 private:
  struct Replacement {
    std::string name;
    std::unique_ptr<RemoteWorker> link;  // to the new process
  };
  enum class Phase : unsigned char { kIdle, kStarting, kLeaving };

  Status Step();
  Status Begin();
  Status StartGroup();
  void TakeGroupBack();
  bool GroupIsReady() const;
  bool GroupHasLeft() const;
  bool GroupHasFailed() const;
  void End(const std::string& result);

  LocalCluster* const cluster_;
  const SecurityPtr security_;
  const std::chrono::seconds start_limit_;
  const Clock* const clock_;
  int folder_ = -1;  // locked for as long as somebody looks
  Phase phase_ = Phase::kIdle;
  std::string revision_;
  int generation_ = 0;
  std::vector<std::vector<std::string>> groups_;  // names, those to come last
  std::vector<Replacement> group_;
  std::chrono::steady_clock::time_point deadline_{};
};

// Asks the cluster in the folder for it and waits until it is done. revision: of the new workers;
// empty: as they were.
Status AskRollingRestart(const std::filesystem::path& dir, const std::string& revision);

}  // namespace deepinfer
