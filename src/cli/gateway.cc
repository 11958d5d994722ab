// deepinfer gateway: the HTTP front of a cluster.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/registry_flags.h"
#include "cli/serving.h"
#include "cli/tls_flags.h"
#include "cluster/incarnation.h"
#include "cluster/remote_worker.h"

namespace deepinfer {
namespace {

// Workers on a network that works answer within milliseconds.
constexpr std::chrono::milliseconds kOthersLimit{300};

class GatewayCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("gateway", "Serve a model over HTTP with workers elsewhere");
    flags_.Register(app_);
    app_->add_option("--worker", workers_,
                     "Where a worker listens: unix:PATH or HOST:PORT; may repeat");
    app_->add_option("--workers-file", workers_file_,
                     "File with an endpoint a line, read again when it changes");
    registry_.RegisterGateway(app_);
    tls_.Register(app_);
    app_->footer(
        "MODEL is needed for its tokenizer; weights are not read. Gateways with one --kv-dir find\n"
        "the prefixes and the turns with tool calls that any of them, or a start before, has "
        "sent.\n"
        "Example:\n"
        "  deepinfer gateway MODEL --worker 10.0.0.7:9100 --worker 10.0.0.8:9100\n"
        "  deepinfer gateway MODEL --registry 10.0.0.1:2379");
    return app_;
  }

  int Run(const FlagOrigins& origins) override {
    flags_.server.config_hash = ConfigHash(EffectiveConfig(*app_, origins));
    Status status = registry_.Check();
    if (workers_.empty() && workers_file_.empty() && registry_.registry.empty()) {
      status = InvalidRequest("a gateway needs --worker, --workers-file or --registry");
    } else if (!workers_file_.empty() && !registry_.registry.empty()) {
      status = InvalidRequest("--workers-file and --registry exclude each other");
    }
    if (!status.ok()) return ReportFailure(status);
    status = RunServing(&flags_, [this](const std::filesystem::path& dir, LoadProgress* progress,
                                        Serving* s) { return Connect(dir, progress, s); });
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Connect(const std::filesystem::path& dir, LoadProgress* progress, Serving* s) {
    progress->Set(LoadPhase::kTokenizer, 0, 0);
    DI_ASSIGN_OR_RETURN(s->engine.bundle.tokenizer, Tokenizer::Load(dir));
    DI_ASSIGN_OR_RETURN(s->special, SpecialTokens::Resolve(*s->engine.bundle.tokenizer));
    DI_ASSIGN_OR_RETURN(const KvIdentity identity, flags_.kv.Identity());
    s->cache_secret = identity.secret;
    s->replay_folder = identity.replay_folder;
    progress->Set(LoadPhase::kWarmup, 0, 0);
    const uint64_t incarnation = NewIncarnation();
    RemoteWorkerOptions link;
    DI_ASSIGN_OR_RETURN(link.security, tls_.Load());
    const WorkerSet::Make make = [incarnation, link,
                                  clock = &s->clock](const std::string& endpoint) {
      return std::make_unique<RemoteWorker>(endpoint, incarnation, WorkerInfo{}, link, clock);
    };
    s->directory = Follow();
    s->gateway = std::make_unique<Gateway>(flags_.gateway_options(), FirstWorkers(make), &s->clock);
    {
      const std::lock_guard lock(mutex_);
      gateway_ = s->gateway.get();
      make_ = make;
      gateway_->FollowWorkers(endpoints_, make);
    }
    return OkStatus();
  }

  std::unique_ptr<WorkerDirectory> Follow() {
    endpoints_ = workers_;
    const auto on_change = [this](const std::vector<std::string>& found) {
      const std::lock_guard lock(mutex_);
      endpoints_ = workers_;
      endpoints_.insert(endpoints_.end(), found.begin(), found.end());
      if (gateway_ != nullptr) gateway_->FollowWorkers(endpoints_, make_);
    };
    if (!workers_file_.empty()) return WorkerDirectory::FollowFile(workers_file_, on_change);
    return registry_.Follow(on_change);
  }

  // Waits for the first worker that answers, which says what is served and comes first. The others
  // may come later, those that are there at once should: they may have runs of a gateway that was
  // lost.
  std::vector<std::unique_ptr<Worker>> FirstWorkers(const WorkerSet::Make& make) {
    std::map<std::string, std::unique_ptr<Worker>> by_endpoint;
    std::optional<std::chrono::steady_clock::time_point> first;
    while (true) {
      std::vector<std::string> endpoints;
      {
        const std::lock_guard lock(mutex_);
        endpoints = endpoints_;
      }
      for (const std::string& endpoint : endpoints) {
        std::unique_ptr<Worker>& worker = by_endpoint[endpoint];
        if (worker == nullptr) worker = make(endpoint);
      }
      const auto is_ready = [](const auto& entry) { return entry.second->Load().ready; };
      const auto now = std::chrono::steady_clock::now();
      if (!first && std::any_of(by_endpoint.begin(), by_endpoint.end(), is_ready)) first = now;
      const bool waits = !first || (now - *first < kOthersLimit &&
                                    !std::all_of(by_endpoint.begin(), by_endpoint.end(), is_ready));
      for (auto& [endpoint, worker] : by_endpoint) {
        if (waits || !worker->Load().ready) continue;
        std::vector<std::unique_ptr<Worker>> workers;
        workers.push_back(std::move(worker));
        for (auto& [other, its_worker] : by_endpoint) {
          if (its_worker != nullptr) workers.push_back(std::move(its_worker));
        }
        return workers;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  CLI::App* app_ = nullptr;
  ServeFlags flags_;
  RegistryFlags registry_;
  TlsFlags tls_;
  std::vector<std::string> workers_;
  std::string workers_file_;
  std::mutex mutex_;
  std::vector<std::string> endpoints_;  // of all that are known; the rest under the lock too
  Gateway* gateway_ = nullptr;
  WorkerSet::Make make_;
};

}  // namespace

std::unique_ptr<Command> MakeGatewayCommand() { return std::make_unique<GatewayCommand>(); }

}  // namespace deepinfer
