// The processes of a cluster on this machine: started, started again when they die, ended together.
// Thread rule: main thread, before it starts others. Owner: `cluster up`.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// Readers see the old text or the new one.
Status WriteWhole(const std::filesystem::path& path, const std::string& text);

struct LocalProcess {
  std::string name;  // prefill-0, decode-1, gateway
  std::string role;
  std::string endpoint;
  std::vector<std::string> arguments;  // of the binary
  pid_t pid = 0;                       // 0: not running
  std::chrono::steady_clock::time_point started{};
  int num_starts = 0;
  bool ended = false;                            // it stopped as asked and stays away
  bool leaving = false;                          // it is being replaced
  std::chrono::steady_clock::time_point left{};  // when it was told so
};

class LocalCluster {
 public:
  // Logs, sockets and the list of processes are kept in dir, which is made. leave_limit: of Leave.
  LocalCluster(std::filesystem::path dir, std::chrono::seconds leave_limit)
      : dir_(std::move(dir)), leave_limit_(leave_limit) {}
  ~LocalCluster();  // as Stop

  // Starts the process with its output in <dir>/<name>.log. unavailable when that fails.
  Status Start(LocalProcess process);

  // Prepares the replacement of a process: it goes on under LeavingName, and what is returned
  // describes it, for a new one of its name. not_found: there is no such process.
  Result<LocalProcess> RenameForLeave(const std::string& name);
  static std::string LeavingName(const std::string& name) { return name + ".leaving"; }
  // Ends the new process of this name instead, and gives the old one its name again.
  void TakeBack(const std::string& name);
  // Lets it end what it has, and kills it after that limit; when it is gone nothing tells of it any
  // more.
  void Leave(const std::string& name);

  // Starts those again that died, at most once a second each. Writes the list when it changed.
  // After an error the next look goes on with what is left to do.
  Status Look();

  // SIGTERM in reverse order of their start, each in its own time; SIGKILL when that is over.
  void Stop(std::chrono::seconds limit);

  // Endpoints of its workers, a line each, in the folder of the cluster.
  static constexpr const char* kWorkersFile = "workers";

  const std::vector<LocalProcess>& processes() const { return processes_; }
  std::filesystem::path PathOf(const std::string& file) const { return dir_ / file; }

 private:
  Status Spawn(LocalProcess* process);
  Status WriteList() const;

  const std::filesystem::path dir_;
  const std::chrono::seconds leave_limit_;
  std::vector<LocalProcess> processes_;
  bool list_is_old_ = false;
};

// What WriteList wrote: name, role, endpoint and pid of every process.
Result<std::vector<LocalProcess>> ReadClusterList(const std::filesystem::path& dir);

}  // namespace deepinfer
