#include "cli/cluster_tools.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "cli/io.h"
#include "cli/local_cluster.h"
#include "cli/model_flags.h"
#include "cli/rolling_restart.h"
#include "cli/stop_signals.h"
#include "cluster/incarnation.h"
#include "cluster/remote_worker.h"

namespace deepinfer {

namespace fs = std::filesystem;

namespace {

// Sockets in the folder must fit into a sockaddr_un.
constexpr size_t kLongestDir = 80;
constexpr std::chrono::milliseconds kAnswerLimit{2000};
constexpr std::chrono::milliseconds kTopInterval{1000};
constexpr std::chrono::milliseconds kShortLook{1};
constexpr std::chrono::seconds kStopLimit{70};

Result<fs::path> MakeDir(const std::string& wanted) {
  if (!wanted.empty()) {
    std::error_code ec;
    fs::create_directories(wanted, ec);
    if (ec) return InvalidRequest("cannot make " + wanted + ": " + ec.message());
    const fs::path dir = fs::absolute(wanted);
    if (dir.string().size() > kLongestDir) {
      return InvalidRequest("--dir " + dir.string() + " is too long for sockets in it");
    }
    return dir;
  }
  char made[] = "/tmp/deepinfer-cluster-XXXXXX";
  if (mkdtemp(made) == nullptr) return Unavailable("cannot make a folder in /tmp");
  return fs::path(made);
}

Result<uint16_t> FreePort(const std::string& host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return InvalidRequest("--port 0 needs an IPv4 address as --host");
  }
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof address;
  const bool found = s >= 0 && bind(s, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(s, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const std::string why = std::strerror(errno);
  if (s >= 0) close(s);
  if (!found) return Unavailable("no free port on " + host + ": " + why);
  return ntohs(address.sin_port);
}

Status StartAll(const ClusterUpOptions& options, const fs::path& model, uint16_t port,
                LocalCluster* cluster) {
  std::vector<std::string> find;  // how workers and gateway find each other
  if (options.registry == "dev") {
    LocalProcess registry;
    registry.name = registry.role = "registry";
    registry.endpoint = "unix:" + cluster->PathOf("registry.sock").string();
    registry.arguments = {"registry", "--listen", registry.endpoint};
    find = {"--registry", registry.endpoint};
    DI_RETURN_IF_ERROR(cluster->Start(std::move(registry)));
  } else if (!options.registry.empty()) {
    // Other clusters may use it too.
    find = {"--registry", options.registry, "--cluster", cluster->PathOf("").string()};
    std::replace(find.back().begin(), find.back().end(), '/', '-');
  }
  for (const auto& [flag, file] : {std::pair("--tls-cert", &options.tls.certificate_file),
                                   std::pair("--tls-key", &options.tls.key_file),
                                   std::pair("--tls-ca", &options.tls.authority_file)}) {
    if (!file->empty()) find.insert(find.end(), {flag, fs::absolute(*file).string()});
  }
  const int num_workers = options.num_all + options.num_prefill + options.num_decode;
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, AvailableCores() / num_workers);
  struct Kind {
    const char* name;
    const char* role;
    int number;
  };
  for (const Kind& kind :
       {Kind{"worker-", "all", options.num_all}, Kind{"prefill-", "prefill", options.num_prefill},
        Kind{"decode-", "decode", options.num_decode}}) {
    for (int i = 0; i < kind.number; ++i) {
      LocalProcess worker;
      worker.name = kind.name + std::to_string(i);
      worker.role = kind.role;
      worker.endpoint = "unix:" + cluster->PathOf(worker.name + ".sock").string();
      worker.arguments = {"worker",   model.string(),  "--role",    worker.role,
                          "--listen", worker.endpoint, "--threads", std::to_string(threads)};
      worker.arguments.insert(worker.arguments.end(), find.begin(), find.end());
      if (!options.kv_dir.empty()) {
        const std::string folder = fs::absolute(options.kv_dir).string();
        worker.arguments.insert(worker.arguments.end(),
                                {"--kv-dir", folder, "--kv-shared", "--kv-node", worker.name});
      }
      worker.arguments.insert(worker.arguments.end(), options.worker_flags.begin(),
                              options.worker_flags.end());
      if (worker.role == "prefill") {
        worker.arguments.insert(worker.arguments.end(), options.prefill_flags.begin(),
                                options.prefill_flags.end());
      }
      DI_RETURN_IF_ERROR(cluster->Start(std::move(worker)));
    }
  }
  LocalProcess gateway;
  gateway.name = gateway.role = "gateway";
  gateway.endpoint = "http://" + options.host + ":" + std::to_string(port);
  gateway.arguments = {"gateway",    model.string(), "--host",
                       options.host, "--port",       std::to_string(port)};
  if (!options.kv_dir.empty()) {
    // So that prefixes of an earlier gateway are found again.
    gateway.arguments.insert(gateway.arguments.end(),
                             {"--kv-dir", fs::absolute(options.kv_dir).string()});
  }
  if (options.registry.empty()) {
    gateway.arguments.insert(
        gateway.arguments.end(),
        {"--workers-file", cluster->PathOf(LocalCluster::kWorkersFile).string()});
  }
  gateway.arguments.insert(gateway.arguments.end(), find.begin(), find.end());
  gateway.arguments.insert(gateway.arguments.end(), options.gateway_flags.begin(),
                           options.gateway_flags.end());
  return cluster->Start(std::move(gateway));
}

RemoteWorkerOptions OperatorLink(const SecurityPtr& security) {
  RemoteWorkerOptions link;
  link.security = security;
  link.is_operator = true;
  return link;
}

// One worker as it answers now, or only what the list says.
struct WorkerView {
  LocalProcess process;
  bool reachable = false;
  WorkerInfo info;
  LoadReport load;
  EngineStatistics statistics;
};

void WriteHandOffs(const HandOffCounters& counters, JsonWriter* writer) {
  writer->BeginObject()
      .Field("tickets_granted", counters.tickets_granted)
      .Field("tickets_released", counters.tickets_released)
      .Field("pins_acquired", counters.pins_acquired)
      .Field("pins_released", counters.pins_released)
      .Field("committed", counters.committed)
      .Field("failed", counters.failed)
      .Field("bytes_sent", counters.bytes_sent)
      .Field("bytes_received", counters.bytes_received)
      .Field("extents_nacked", counters.extents_nacked)
      .Field("bytes_by_ucx", counters.bytes_by_ucx)
      .EndObject();
}

// Links to the workers of a cluster.
class ClusterView {
 public:
  static Result<ClusterView> Open(const ClusterPlace& place, const Clock* clock) {
    DI_ASSIGN_OR_RETURN(const std::vector<LocalProcess> processes, ReadClusterList(place.dir));
    const RemoteWorkerOptions link = OperatorLink(place.security);
    ClusterView view;
    for (const LocalProcess& p : processes) {
      if (p.role == "gateway" || p.role == "registry") continue;
      view.views_.push_back({p, false, {}, {}, {}});
      view.remote_.push_back(
          std::make_unique<RemoteWorker>(p.endpoint, NewIncarnation(), WorkerInfo{}, link, clock));
    }
    return view;
  }

  // As they are now; waits so long for each that has not answered yet.
  const std::vector<WorkerView>& Look(std::chrono::milliseconds limit) {
    for (size_t i = 0; i < views_.size(); ++i) {
      views_[i].reachable = remote_[i]->WaitReady(limit);
      views_[i].info = remote_[i]->info();
      views_[i].load = remote_[i]->Load();
      views_[i].statistics = remote_[i]->Statistics();
    }
    return views_;
  }

 private:
  std::vector<WorkerView> views_;
  std::vector<std::unique_ptr<RemoteWorker>> remote_;
};

// In steps, since its start.
double BusySeconds(const WorkerView& v) { return static_cast<double>(v.statistics.step_us) * 1e-6; }

std::string RoleOf(const WorkerView& v) {
  return v.reachable ? std::string(WorkerRoleName(v.info.role)) : v.process.role;
}

// Time in steps of the busiest worker of a role over the mean of those that are there; roles in
// which nobody did anything are left out.
std::map<std::string, double> BusiestByRole(const std::vector<WorkerView>& views) {
  struct Times {
    double most = 0, sum = 0;
    int num = 0;
  };
  std::map<std::string, Times> times;
  for (const WorkerView& v : views) {
    if (!v.reachable) continue;
    Times& t = times[RoleOf(v)];
    t.most = std::max(t.most, BusySeconds(v));
    t.sum += BusySeconds(v);
    ++t.num;
  }
  std::map<std::string, double> ratios;
  for (const auto& [role, t] : times) {
    if (t.sum > 0) ratios[role] = t.most * t.num / t.sum;
  }
  return ratios;
}

// What a worker had done at the look before; nothing before the first.
struct Rates {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t step_us = 0;
};

std::string TopTable(const std::vector<WorkerView>& views, double seconds,
                     std::map<std::string, Rates>* last) {
  std::string text = fmt::format(
      "{:<10} {:<8} {:>8} {:>8} {:>8} {:>12} {:>10} {:>10} {:>6} {:>9}\n", "worker", "role", "pid",
      "running", "waiting", "kv tokens", "prompt/s", "answer/s", "busy %", "hand-offs");
  for (const WorkerView& v : views) {
    Rates& before = (*last)[v.process.name];
    const Rates now{v.statistics.computed_tokens, v.statistics.generated_tokens,
                    v.statistics.step_us};
    const auto rate = [&](int64_t from, int64_t to, double unit) {
      const bool known = from > 0 && to >= from;
      return known ? fmt::format("{:.0f}", static_cast<double>(to - from) / seconds / unit) : "-";
    };
    constexpr double kUsOfPercent = 1e4;
    const char* state = v.load.draining ? " draining" : "";
    text += fmt::format("{:<10} {:<8} {:>8} {:>8} {:>8} {:>12} {:>10} {:>10} {:>6} {:>9}{}\n",
                        v.process.name, RoleOf(v), v.info.pid, v.load.running, v.load.waiting,
                        v.load.kv_tokens, rate(before.prompt_tokens, now.prompt_tokens, 1),
                        rate(before.generated_tokens, now.generated_tokens, 1),
                        rate(before.step_us, now.step_us, kUsOfPercent),
                        v.load.hand_offs.committed + v.load.hand_offs.tickets_granted,
                        v.reachable ? state : " lost");
    before = now;
  }
  return text;
}

// The endpoint of a worker that has a name in the cluster of the folder, else what was given.
Result<std::string> EndpointOf(const std::string& dir, const std::string& worker) {
  if (dir.empty()) return worker;
  DI_ASSIGN_OR_RETURN(const std::vector<LocalProcess> processes, ReadClusterList(dir));
  for (const LocalProcess& p : processes) {
    if (p.name == worker) return p.endpoint;
  }
  return worker;
}

}  // namespace

Status ClusterUp(const ClusterUpOptions& in) {
  InitLogging(LogLevel::kInfo, LogFormat::kText);
  ClusterUpOptions options = in;
  if (options.num_all + options.num_prefill + options.num_decode == 0) options.num_all = 2;
  ModelFlags flags;
  flags.model = options.model;
  DI_ASSIGN_OR_RETURN(const fs::path model, flags.ModelDir());
  DI_ASSIGN_OR_RETURN(const fs::path dir, MakeDir(options.dir));
  uint16_t port = options.port;
  if (port == 0) {
    DI_ASSIGN_OR_RETURN(port, FreePort(options.host));
  }
  StopSignals signals;
  LocalCluster cluster(dir, std::chrono::seconds(options.leave_limit_s));
  const SteadyClock clock;
  DI_ASSIGN_OR_RETURN(const SecurityPtr security, options.tls.Load());
  RollingRestart restart(&cluster, security, std::chrono::seconds(options.start_limit_s), &clock);
  DI_RETURN_IF_ERROR(StartAll(options, fs::absolute(model), port, &cluster));
  for (const LocalProcess& p : cluster.processes()) {
    DI_RETURN_IF_ERROR(
        PrintLine(fmt::format("{:<10} pid {:<8} {:<40} {}", p.name, p.pid, p.endpoint,
                              cluster.PathOf(p.name + ".log").string())));
  }
  std::string last_error;
  while (!signals.WaitFor(std::chrono::milliseconds(100))) {
    // The workers serve on meanwhile: a full disk or a refused fork may pass.
    const Status looked = cluster.Look();
    const std::string error = looked.ok() ? "" : looked.ToString();
    if (!looked.ok() && error != last_error) {
      Log(LogLevel::kError, "cluster.look_failed", {{"status", looked}});
    }
    last_error = error;
    restart.Turn();
  }
  Log(LogLevel::kInfo, "cluster.stopping");
  cluster.Stop(kStopLimit);
  Log(LogLevel::kInfo, "cluster.stopped");
  return OkStatus();
}

Status PrintClusterStatus(const ClusterPlace& place, bool as_json) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  const SteadyClock clock;
  DI_ASSIGN_OR_RETURN(ClusterView cluster, ClusterView::Open(place, &clock));
  const std::vector<WorkerView>& views = cluster.Look(kAnswerLimit);
  if (!as_json) {
    for (const WorkerView& v : views) {
      DI_RETURN_IF_ERROR(PrintLine(fmt::format(
          "{:<10} {:<8} pid {:<8} {} running {} waiting {} kv {}/{} tokens{}", v.process.name,
          RoleOf(v), v.process.pid, v.reachable ? "ready" : "lost ", v.load.running, v.load.waiting,
          v.load.kv_tokens, v.load.kv_capacity_tokens, v.load.draining ? " draining" : "")));
    }
    return OkStatus();
  }
  std::string text;
  JsonWriter writer(&text);
  writer.BeginObject().Key("workers").BeginArray();
  for (const WorkerView& v : views) {
    writer.BeginObject()
        .Field("name", v.process.name)
        .Field("role", RoleOf(v))
        .Field("pid", v.reachable ? v.info.pid : int64_t{v.process.pid})
        .Field("endpoint", v.process.endpoint)
        .Field("revision", v.info.revision)
        .Key("ready")
        .Bool(v.reachable)
        .Field("running", int64_t{v.load.running})
        .Field("waiting", int64_t{v.load.waiting})
        .Field("kv_tokens", v.load.kv_tokens)
        .Field("kv_capacity_tokens", v.load.kv_capacity_tokens)
        .Field("orphans", int64_t{v.load.orphans})
        .Field("kept_bytes", v.load.kept_bytes)
        .Key("device_seconds")
        .Float(static_cast<float>(BusySeconds(v)))
        .Key("step_prediction_error")
        .Float(static_cast<float>(v.load.costs.error))
        .Key("draining")
        .Bool(v.load.draining)
        .Key("hand_offs");
    WriteHandOffs(v.load.hand_offs, &writer);
    writer.EndObject();
  }
  writer.EndArray().Key("busiest_worker_ratio").BeginObject();
  for (const auto& [role, ratio] : BusiestByRole(views))
    writer.Key(role).Float(static_cast<float>(ratio));
  writer.EndObject().EndObject();
  return PrintLine(text);
}

Status ShowClusterTop(const ClusterPlace& place, int rounds) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  const SteadyClock clock;
  StopSignals signals;
  DI_ASSIGN_OR_RETURN(ClusterView cluster, ClusterView::Open(place, &clock));
  std::map<std::string, Rates> last;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  int64_t before_us = clock.NowUs();
  for (int n = 0; rounds == 0 || n < rounds; ++n) {
    if (n > 0 && signals.WaitFor(kTopInterval)) return OkStatus();
    // One that was lost must not hold the table up.
    const std::vector<WorkerView>& views = cluster.Look(n == 0 ? kAnswerLimit : kShortLook);
    const int64_t now_us = clock.NowUs();
    const double seconds = static_cast<double>(now_us - before_us) * 1e-6;
    before_us = now_us;
    const std::string table = TopTable(views, seconds, &last);
    DI_RETURN_IF_ERROR(PrintLine((terminal ? "\x1b[H\x1b[2J" : "") + table));
  }
  return OkStatus();
}

Status SetWorkerRole(const ClusterPlace& place, const std::string& worker,
                     const std::string& role) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  DI_ASSIGN_OR_RETURN(const std::string endpoint, EndpointOf(place.dir, worker));
  const SteadyClock clock;
  RemoteWorker remote(endpoint, NewIncarnation(), WorkerInfo{}, OperatorLink(place.security),
                      &clock);
  if (!remote.WaitReady(kAnswerLimit)) return Unavailable("no worker answers at " + endpoint);
  const std::optional<WorkerRole> wanted = ParseWorkerRole(role);
  if (!wanted) return InvalidRequest("a role is all, prefill or decode");
  DI_RETURN_IF_ERROR(remote.AskRole(*wanted));
  const int64_t deadline_us = clock.NowUs() + 5'000'000;
  while (remote.info().role != *wanted && clock.NowUs() < deadline_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return remote.info().role == *wanted ? OkStatus() : DeadlineExceeded(worker + " does not answer");
}

Status DrainWorker(const ClusterPlace& place, const std::string& worker, double within_s) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  DI_ASSIGN_OR_RETURN(const std::string endpoint, EndpointOf(place.dir, worker));
  const SteadyClock clock;
  RemoteWorker remote(endpoint, NewIncarnation(), WorkerInfo{}, OperatorLink(place.security),
                      &clock);
  if (!remote.WaitReady(kAnswerLimit)) return Unavailable("no worker answers at " + endpoint);
  DI_RETURN_IF_ERROR(remote.AskDrain(static_cast<int64_t>(within_s * 1e6)));
  const int64_t deadline_us = clock.NowUs() + static_cast<int64_t>(within_s * 1e6) + 5'000'000;
  while (remote.Load().ready && clock.NowUs() < deadline_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return remote.Load().ready ? DeadlineExceeded(worker + " still runs") : OkStatus();
}

}  // namespace deepinfer
