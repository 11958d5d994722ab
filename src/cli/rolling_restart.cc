#include "cli/rolling_restart.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <thread>

#include "base/log.h"
#include "cli/io.h"
#include "cluster/incarnation.h"

namespace deepinfer {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRequestFile = "restart";
constexpr const char* kResultFile = "restart.result";
constexpr const char* kDone = "done";
constexpr std::chrono::minutes kAskLimit{60};
constexpr std::chrono::milliseconds kLook{50};

// "3" of decode-3: workers of all roles with one number make a group.
std::string NumberOf(const std::string& name) { return name.substr(name.rfind('-') + 1); }

// Gives a flag another value, whether it was "--flag value", "--flag=value" or not there.
void SetFlag(const std::string& flag, const std::string& value,
             std::vector<std::string>* arguments) {
  const auto it = std::find(arguments->begin(), arguments->end(), flag);
  if (it != arguments->end())
    arguments->erase(it, it + std::min<std::ptrdiff_t>(2, arguments->end() - it));
  std::erase_if(*arguments, [&](const std::string& a) { return a.starts_with(flag + "="); });
  arguments->push_back(flag + "=" + value);
}

int OpenFolder(const fs::path& dir) {
  return open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Whether a RollingRestart looks at the folder: the kernel unlocks it with the process.
bool IsLookedAfter(const fs::path& dir) {
  const int folder = OpenFolder(dir);
  if (folder < 0) return false;
  const bool is_free = flock(folder, LOCK_EX | LOCK_NB) == 0;
  close(folder);
  return !is_free;
}

void Remove(const fs::path& path) {
  std::error_code ec;
  fs::remove(path, ec);
}

}  // namespace

RollingRestart::RollingRestart(LocalCluster* cluster, SecurityPtr security,
                               std::chrono::seconds start_limit, const Clock* clock)
    : cluster_(cluster),
      security_(std::move(security)),
      start_limit_(start_limit),
      clock_(clock),
      folder_(OpenFolder(cluster->PathOf(""))) {
  if (folder_ >= 0) (void)flock(folder_, LOCK_SH);
  for (const char* file : {kRequestFile, kResultFile}) Remove(cluster_->PathOf(file));
}

RollingRestart::~RollingRestart() {
  if (folder_ >= 0) close(folder_);
}

void RollingRestart::Turn() {
  const Status status = Step();
  if (status.ok()) return;
  TakeGroupBack();
  End(status.ToString());
}

Status RollingRestart::Step() {
  switch (phase_) {
    case Phase::kIdle:
      return fs::exists(cluster_->PathOf(kRequestFile)) ? Begin() : OkStatus();
    case Phase::kStarting:
      if (GroupIsReady()) {
        for (const Replacement& r : group_) cluster_->Leave(LocalCluster::LeavingName(r.name));
        phase_ = Phase::kLeaving;
      } else if (GroupHasFailed() || std::chrono::steady_clock::now() > deadline_) {
        TakeGroupBack();
        End("the new workers of a group do not become ready; its old ones go on");
      }
      return OkStatus();
    case Phase::kLeaving:
      if (!GroupHasLeft()) return OkStatus();
      group_.clear();
      return StartGroup();
  }
  return OkStatus();
}

Status RollingRestart::Begin() {
  DI_ASSIGN_OR_RETURN(const std::string text,
                      ReadTextFile(cluster_->PathOf(kRequestFile).string()));
  revision_ = text.substr(0, text.find('\n'));
  ++generation_;
  std::map<std::string, std::vector<std::string>> by_number;
  for (const LocalProcess& p : cluster_->processes()) {
    if (p.role == "gateway" || p.role == "registry") continue;
    by_number[NumberOf(p.name)].push_back(p.name);
  }
  groups_.clear();
  for (auto it = by_number.rbegin(); it != by_number.rend(); ++it) groups_.push_back(it->second);
  Log(LogLevel::kInfo, "restart.begun", {{"revision", revision_}});
  return StartGroup();
}

Status RollingRestart::StartGroup() {
  if (groups_.empty()) {
    End(kDone);
    return OkStatus();
  }
  const std::vector<std::string> names = groups_.back();
  groups_.pop_back();
  RemoteWorkerOptions link;
  link.security = security_;
  link.is_operator = true;
  for (const std::string& name : names) {
    DI_ASSIGN_OR_RETURN(LocalProcess next, cluster_->RenameForLeave(name));
    const std::string socket = name + "." + std::to_string(generation_) + ".sock";
    next.endpoint = "unix:" + cluster_->PathOf(socket).string();
    SetFlag("--listen", next.endpoint, &next.arguments);
    if (!revision_.empty()) SetFlag("--revision", revision_, &next.arguments);
    group_.push_back({name, std::make_unique<RemoteWorker>(next.endpoint, NewIncarnation(),
                                                           WorkerInfo{}, link, clock_)});
    DI_RETURN_IF_ERROR(cluster_->Start(std::move(next)));
  }
  deadline_ = std::chrono::steady_clock::now() + start_limit_;
  phase_ = Phase::kStarting;
  return OkStatus();
}

void RollingRestart::TakeGroupBack() {
  for (const Replacement& r : group_) cluster_->TakeBack(r.name);
}

bool RollingRestart::GroupIsReady() const {
  return std::all_of(group_.begin(), group_.end(),
                     [](const Replacement& r) { return r.link->Load().ready; });
}

bool RollingRestart::GroupHasLeft() const {
  const std::vector<LocalProcess>& all = cluster_->processes();
  return std::none_of(all.begin(), all.end(), [this](const LocalProcess& p) {
    return std::any_of(group_.begin(), group_.end(), [&](const Replacement& r) {
      return p.name == LocalCluster::LeavingName(r.name);
    });
  });
}

bool RollingRestart::GroupHasFailed() const {
  const std::vector<LocalProcess>& all = cluster_->processes();
  return std::any_of(all.begin(), all.end(), [this](const LocalProcess& p) {
    return (p.ended || p.num_starts > 1) &&
           std::any_of(group_.begin(), group_.end(),
                       [&](const Replacement& r) { return p.name == r.name; });
  });
}

void RollingRestart::End(const std::string& result) {
  Log(result == kDone ? LogLevel::kInfo : LogLevel::kError, "restart.ended", {{"result", result}});
  group_.clear();
  groups_.clear();
  phase_ = Phase::kIdle;
  const Status written = WriteWhole(cluster_->PathOf(kResultFile), result + '\n');
  if (!written.ok()) Log(LogLevel::kError, "restart.result_lost", {{"status", written}});
  Remove(cluster_->PathOf(kRequestFile));
}

Status AskRollingRestart(const fs::path& dir, const std::string& revision) {
  DI_RETURN_IF_ERROR(ReadClusterList(dir).status());
  const Status nobody = Unavailable("no `cluster up` looks after " + dir.string());
  if (!IsLookedAfter(dir)) return nobody;
  if (fs::exists(dir / kRequestFile)) return Unavailable("a restart of this cluster is under way");
  Remove(dir / kResultFile);
  DI_RETURN_IF_ERROR(WriteWhole(dir / kRequestFile, revision + '\n'));
  const auto deadline = std::chrono::steady_clock::now() + kAskLimit;
  while (fs::exists(dir / kRequestFile)) {
    if (!IsLookedAfter(dir)) return nobody;
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("it still goes on");
    std::this_thread::sleep_for(kLook);
  }
  DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile((dir / kResultFile).string()));
  const std::string result = text.substr(0, text.find('\n'));
  return result == kDone ? OkStatus() : Unavailable(result);
}

}  // namespace deepinfer
