#include "cli/rolling_restart.h"

#include <algorithm>
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
// Loading the weights of a large model takes minutes; draining, as long as a worker is told.
constexpr std::chrono::minutes kStartLimit{10};
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

}  // namespace

RollingRestart::RollingRestart(LocalCluster* cluster, SecurityPtr security, const Clock* clock)
    : cluster_(cluster), security_(std::move(security)), clock_(clock) {}

RollingRestart::~RollingRestart() = default;

Status RollingRestart::Turn() {
  switch (phase_) {
    case Phase::kIdle:
      return fs::exists(cluster_->PathOf(kRequestFile)) ? Begin() : OkStatus();
    case Phase::kStarting:
      if (GroupIsReady()) {
        for (const Replacement& r : group_) cluster_->Leave(LocalCluster::LeavingName(r.name));
        phase_ = Phase::kLeaving;
      } else if (GroupHasFailed() || std::chrono::steady_clock::now() > deadline_) {
        for (const Replacement& r : group_) cluster_->TakeBack(r.name);
        return End("the new workers of a group do not become ready; its old ones go on");
      }
      return OkStatus();
    case Phase::kLeaving:
      if (!GroupHasLeft()) return OkStatus();
      group_.clear();
      return groups_.empty() ? End(kDone) : StartGroup();
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
  return groups_.empty() ? End(kDone) : StartGroup();
}

Status RollingRestart::StartGroup() {
  const std::vector<std::string> names = groups_.back();
  groups_.pop_back();
  RemoteWorkerOptions link;
  link.security = security_;
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
  deadline_ = std::chrono::steady_clock::now() + kStartLimit;
  phase_ = Phase::kStarting;
  return OkStatus();
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

Status RollingRestart::End(const std::string& result) {
  Log(result == kDone ? LogLevel::kInfo : LogLevel::kError, "restart.ended", {{"result", result}});
  group_.clear();
  groups_.clear();
  phase_ = Phase::kIdle;
  DI_RETURN_IF_ERROR(WriteWhole(cluster_->PathOf(kResultFile), result + '\n'));
  std::error_code ec;
  fs::remove(cluster_->PathOf(kRequestFile), ec);
  return OkStatus();
}

Status AskRollingRestart(const fs::path& dir, const std::string& revision) {
  DI_RETURN_IF_ERROR(ReadClusterList(dir).status());
  if (fs::exists(dir / kRequestFile)) return Unavailable("a restart of this cluster is under way");
  std::error_code ec;
  fs::remove(dir / kResultFile, ec);
  DI_RETURN_IF_ERROR(WriteWhole(dir / kRequestFile, revision + '\n'));
  const auto deadline = std::chrono::steady_clock::now() + kAskLimit;
  while (fs::exists(dir / kRequestFile)) {
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("it still goes on");
    std::this_thread::sleep_for(kLook);
  }
  DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile((dir / kResultFile).string()));
  const std::string result = text.substr(0, text.find('\n'));
  return result == kDone ? OkStatus() : Unavailable(result);
}

}  // namespace deepinfer
