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

#include "base/clock.h"
#include "base/log.h"
#include "cli/io.h"
#include "cli/local_cluster.h"
#include "cli/model_flags.h"
#include "cli/stop_signals.h"
#include "cluster/incarnation.h"
#include "cluster/remote_worker.h"
#include "server/json_writer.h"

namespace deepinfer {

namespace fs = std::filesystem;

namespace {

// Sockets in the folder must fit into a sockaddr_un.
constexpr size_t kLongestDir = 80;
constexpr std::chrono::milliseconds kAnswerLimit{2000};
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
  const int num_workers = options.num_all + options.num_prefill + options.num_decode;
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, AvailableCores() / num_workers);
  struct Kind {
    const char* name;
    const char* role;
    int number;
  };
  std::vector<std::string> endpoints;
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
      worker.arguments.insert(worker.arguments.end(), options.worker_flags.begin(),
                              options.worker_flags.end());
      if (find.empty()) endpoints.push_back("--worker=" + worker.endpoint);
      DI_RETURN_IF_ERROR(cluster->Start(std::move(worker)));
    }
  }
  LocalProcess gateway;
  gateway.name = gateway.role = "gateway";
  gateway.endpoint = "http://" + options.host + ":" + std::to_string(port);
  gateway.arguments = {"gateway",    model.string(), "--host",
                       options.host, "--port",       std::to_string(port)};
  for (const std::vector<std::string>* more : {&endpoints, &find}) {
    gateway.arguments.insert(gateway.arguments.end(), more->begin(), more->end());
  }
  gateway.arguments.insert(gateway.arguments.end(), options.gateway_flags.begin(),
                           options.gateway_flags.end());
  return cluster->Start(std::move(gateway));
}

// One worker as it answers now, or only what the list says.
struct WorkerView {
  LocalProcess process;
  bool reachable = false;
  WorkerInfo info;
  LoadReport load;
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
      .EndObject();
}

Result<std::vector<WorkerView>> AskWorkers(const std::string& dir) {
  DI_ASSIGN_OR_RETURN(const std::vector<LocalProcess> processes, ReadClusterList(dir));
  const SteadyClock clock;
  std::vector<WorkerView> views;
  std::vector<std::unique_ptr<RemoteWorker>> remote;
  for (const LocalProcess& p : processes) {
    if (p.role == "gateway" || p.role == "registry") continue;
    views.push_back({p, false, {}, {}});
    remote.push_back(std::make_unique<RemoteWorker>(p.endpoint, NewIncarnation(), WorkerInfo{},
                                                    RemoteWorkerOptions{}, &clock));
  }
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].reachable = remote[i]->WaitReady(kAnswerLimit);
    views[i].info = remote[i]->info();
    views[i].load = remote[i]->Load();
  }
  return views;
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
  LocalCluster cluster(dir);
  DI_RETURN_IF_ERROR(StartAll(options, fs::absolute(model), port, &cluster));
  for (const LocalProcess& p : cluster.processes()) {
    DI_RETURN_IF_ERROR(
        PrintLine(fmt::format("{:<10} pid {:<8} {:<40} {}", p.name, p.pid, p.endpoint,
                              cluster.PathOf(p.name + ".log").string())));
  }
  while (!signals.WaitFor(std::chrono::milliseconds(100))) DI_RETURN_IF_ERROR(cluster.Look());
  Log(LogLevel::kInfo, "cluster.stopping");
  cluster.Stop(kStopLimit);
  Log(LogLevel::kInfo, "cluster.stopped");
  return OkStatus();
}

Status PrintClusterStatus(const std::string& dir, bool as_json) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  DI_ASSIGN_OR_RETURN(const std::vector<WorkerView> views, AskWorkers(dir));
  if (!as_json) {
    for (const WorkerView& v : views) {
      DI_RETURN_IF_ERROR(PrintLine(fmt::format(
          "{:<10} {:<8} pid {:<8} {} running {} waiting {} kv {}/{} tokens{}", v.process.name,
          v.process.role, v.process.pid, v.reachable ? "ready" : "lost ", v.load.running,
          v.load.waiting, v.load.kv_tokens, v.load.kv_capacity_tokens,
          v.load.draining ? " draining" : "")));
    }
    return OkStatus();
  }
  std::string text;
  JsonWriter writer(&text);
  writer.BeginObject().Key("workers").BeginArray();
  for (const WorkerView& v : views) {
    writer.BeginObject()
        .Field("name", v.process.name)
        .Field("role", v.process.role)
        .Field("pid", v.reachable ? v.info.pid : int64_t{v.process.pid})
        .Field("endpoint", v.process.endpoint)
        .Key("ready")
        .Bool(v.reachable)
        .Field("running", int64_t{v.load.running})
        .Field("waiting", int64_t{v.load.waiting})
        .Field("kv_tokens", v.load.kv_tokens)
        .Field("kv_capacity_tokens", v.load.kv_capacity_tokens)
        .Key("draining")
        .Bool(v.load.draining)
        .Key("hand_offs");
    WriteHandOffs(v.load.hand_offs, &writer);
    writer.EndObject();
  }
  writer.EndArray().EndObject();
  return PrintLine(text);
}

Status DrainWorker(const std::string& dir, const std::string& worker, double within_s) {
  InitLogging(LogLevel::kError, LogFormat::kText);
  std::string endpoint = worker;
  if (!dir.empty()) {
    DI_ASSIGN_OR_RETURN(const std::vector<LocalProcess> processes, ReadClusterList(dir));
    for (const LocalProcess& p : processes) {
      if (p.name == worker) endpoint = p.endpoint;
    }
  }
  const SteadyClock clock;
  RemoteWorker remote(endpoint, NewIncarnation(), WorkerInfo{}, RemoteWorkerOptions{}, &clock);
  if (!remote.WaitReady(kAnswerLimit)) return Unavailable("no worker answers at " + endpoint);
  DI_RETURN_IF_ERROR(remote.AskDrain(static_cast<int64_t>(within_s * 1e6)));
  const int64_t deadline_us = clock.NowUs() + static_cast<int64_t>(within_s * 1e6) + 5'000'000;
  while (remote.Load().ready && clock.NowUs() < deadline_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return remote.Load().ready ? DeadlineExceeded(worker + " still runs") : OkStatus();
}

}  // namespace deepinfer
