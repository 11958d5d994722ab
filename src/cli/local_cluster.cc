#include "cli/local_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/json_writer.h"
#include "base/log.h"
#include "cli/io.h"

namespace deepinfer {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

constexpr const char* kListFile = "cluster.json";
constexpr std::chrono::seconds kLeastLife{1};  // before a process is started again
constexpr std::chrono::milliseconds kLook{20};

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void BecomeProcess(const char* binary, char* const* arguments, int log, pid_t parent) {
  // It must not outlive who started it, whatever ends that.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  // The terminal's interrupt is for the parent, which ends everybody in order.
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(binary, arguments);
  _exit(127);
}

}  // namespace

Status WriteWhole(const fs::path& path, const std::string& text) {
  const fs::path next = path.string() + ".next";
  std::ofstream out(next);
  out << text;
  out.close();
  std::error_code ec;
  if (out) fs::rename(next, path, ec);
  if (!out || ec) return Unavailable("cannot write " + path.string());
  return OkStatus();
}

LocalCluster::~LocalCluster() { Stop(std::chrono::seconds(10)); }

Status LocalCluster::Start(LocalProcess process) {
  std::error_code ec;
  fs::create_directories(dir_, ec);
  if (ec) return Unavailable("cannot make " + dir_.string() + ": " + ec.message());
  DI_RETURN_IF_ERROR(Spawn(&process));
  processes_.push_back(std::move(process));
  return WriteList();
}

Status LocalCluster::Spawn(LocalProcess* process) {
  const std::string log_path = PathOf(process->name + ".log").string();
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return Unavailable("cannot write " + log_path + ": " + std::strerror(errno));
  std::vector<char*> arguments;
  std::string name = "deepinfer";
  arguments.push_back(name.data());
  for (std::string& argument : process->arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProcess("/proc/self/exe", arguments.data(), log, parent);
  close(log);
  if (pid < 0) return Unavailable(std::string("cannot start a process: ") + std::strerror(errno));
  process->pid = pid;
  ++process->num_starts;
  process->started = std::chrono::steady_clock::now();
  Log(LogLevel::kInfo, "process.started",
      {{"name", process->name},
       {"pid", int64_t{pid}},
       {"endpoint", process->endpoint},
       {"log", log_path}});
  return OkStatus();
}

Result<LocalProcess> LocalCluster::RenameForLeave(const std::string& name) {
  for (LocalProcess& p : processes_) {
    if (p.name != name) continue;
    LocalProcess next = p;
    next.pid = 0;
    next.num_starts = 0;
    next.ended = false;
    p.name = LeavingName(name);
    return next;
  }
  return NotFound("there is no process " + name);
}

void LocalCluster::TakeBack(const std::string& name) {
  for (LocalProcess& p : processes_) {
    if (p.name == name) {
      p.name = name + ".failed";
      Leave(p.name);
    } else if (p.name == LeavingName(name)) {
      p.name = name;
    }
  }
}

void LocalCluster::Leave(const std::string& name) {
  for (LocalProcess& p : processes_) {
    if (p.name != name) continue;
    p.leaving = true;
    p.left = std::chrono::steady_clock::now();
    if (p.pid != 0) kill(p.pid, SIGTERM);
  }
}

Status LocalCluster::Look() {
  Status status;
  const auto now = std::chrono::steady_clock::now();
  for (LocalProcess& p : processes_) {
    int result = 0;
    if (p.pid != 0 && waitpid(p.pid, &result, WNOHANG) == p.pid) {
      p.ended = WIFEXITED(result) && WEXITSTATUS(result) == 0;
      Log(p.ended ? LogLevel::kInfo : LogLevel::kWarning, "process.ended",
          {{"name", p.name}, {"pid", int64_t{p.pid}}, {"as_asked", p.ended}});
      p.pid = 0;
      list_is_old_ = true;
    }
    if (p.pid != 0 && p.leaving && now - p.left > leave_limit_) kill(p.pid, SIGKILL);
    if (p.pid == 0 && !p.ended && !p.leaving && now - p.started >= kLeastLife) {
      status = Spawn(&p);
      list_is_old_ = list_is_old_ || status.ok();
    }
  }
  const auto has_left = [](const LocalProcess& p) { return p.leaving && p.pid == 0; };
  list_is_old_ = std::erase_if(processes_, has_left) > 0 || list_is_old_;
  if (list_is_old_) DI_RETURN_IF_ERROR(WriteList());
  list_is_old_ = false;
  return status;
}

void LocalCluster::Stop(std::chrono::seconds limit) {
  for (auto p = processes_.rbegin(); p != processes_.rend(); ++p) {
    if (p->pid == 0) continue;
    kill(p->pid, SIGTERM);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    bool gone = false;
    while (!gone && std::chrono::steady_clock::now() < deadline) {
      gone = waitpid(p->pid, nullptr, WNOHANG) == p->pid;
      if (!gone) std::this_thread::sleep_for(kLook);
    }
    if (!gone) {
      kill(p->pid, SIGKILL);
      waitpid(p->pid, nullptr, 0);
    }
    p->pid = 0;
  }
  processes_.clear();
  std::error_code ec;
  fs::remove(PathOf(kListFile), ec);
}

Status LocalCluster::WriteList() const {
  std::string text;
  JsonWriter writer(&text);
  writer.BeginArray();
  for (const LocalProcess& p : processes_) {
    writer.BeginObject()
        .Field("name", p.name)
        .Field("role", p.role)
        .Field("endpoint", p.endpoint)
        .Field("pid", int64_t{p.pid})
        .EndObject();
  }
  writer.EndArray();
  std::string endpoints;
  for (const LocalProcess& p : processes_) {
    if (p.role != "gateway" && p.role != "registry" && !p.leaving) endpoints += p.endpoint + '\n';
  }
  DI_RETURN_IF_ERROR(WriteWhole(PathOf(kWorkersFile), endpoints));
  return WriteWhole(PathOf(kListFile), text + '\n');
}

Result<std::vector<LocalProcess>> ReadClusterList(const fs::path& dir) {
  const fs::path path = dir / kListFile;
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) {
    return NotFound("no cluster runs in '" + dir.string() +
                    "': --dir names the folder that `deepinfer cluster up` was given or printed");
  }
  DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path.string()));
  const Status broken = DataCorruption(path.string() + " is not a list of processes");
  std::vector<LocalProcess> processes;
  boost::system::error_code ec;
  const json::value list = json::parse(text, ec);
  if (ec || !list.is_array()) return broken;
  for (const json::value& item : list.as_array()) {
    const json::object* object = item.if_object();
    if (object == nullptr) return broken;
    LocalProcess p;
    for (auto [key, field] : {std::pair("name", &p.name), std::pair("role", &p.role),
                              std::pair("endpoint", &p.endpoint)}) {
      const json::value* value = object->if_contains(key);
      if (value == nullptr || !value->is_string()) return broken;
      field->assign(value->as_string().begin(), value->as_string().end());
    }
    const json::value* pid = object->if_contains("pid");
    if (pid == nullptr || !pid->is_int64()) return broken;
    p.pid = static_cast<pid_t>(pid->as_int64());
    processes.push_back(std::move(p));
  }
  return processes;
}

}  // namespace deepinfer
