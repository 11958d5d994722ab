// deepinfer gateway: the HTTP front of a cluster.

#include <CLI/CLI.hpp>
#include <array>
#include <cstring>

#include "base/sha256.h"
#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/serving.h"
#include "cluster/incarnation.h"
#include "cluster/remote_worker.h"

namespace deepinfer {
namespace {

class GatewayCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("gateway", "Serve a model over HTTP with workers elsewhere");
    flags_.Register(app_);
    app_->add_option("--worker", workers_,
                     "Where a worker listens: unix:PATH or HOST:PORT; may repeat")
        ->required();
    app_->footer(
        "MODEL is needed for its tokenizer; weights are not read.\n"
        "Example:\n"
        "  deepinfer gateway MODEL --worker 10.0.0.7:9100 --worker 10.0.0.8:9100");
    return app_;
  }

  int Run(const FlagOrigins& origins) override {
    flags_.server.config_hash = ConfigHash(EffectiveConfig(*app_, origins));
    const Status status =
        RunServing(&flags_, [this](const std::filesystem::path& dir, LoadProgress* progress,
                                   Serving* s) { return Connect(dir, progress, s); });
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Connect(const std::filesystem::path& dir, LoadProgress* progress, Serving* s) {
    progress->Set(LoadPhase::kTokenizer, 0, 0);
    DI_ASSIGN_OR_RETURN(s->engine.bundle.tokenizer, Tokenizer::Load(dir));
    DI_ASSIGN_OR_RETURN(s->special, SpecialTokens::Resolve(*s->engine.bundle.tokenizer));
    // Scopes of one gateway need only differ from those of others.
    const std::array<uint64_t, 4> random = {NewIncarnation(), NewIncarnation(), NewIncarnation(),
                                            NewIncarnation()};
    std::memcpy(s->cache_secret.data(), random.data(), s->cache_secret.size());
    progress->Set(LoadPhase::kWarmup, 0, 0);
    const uint64_t incarnation = NewIncarnation();
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<RemoteWorker*> remote;
    for (const std::string& endpoint : workers_) {
      auto worker = std::make_unique<RemoteWorker>(endpoint, incarnation, WorkerInfo{},
                                                   RemoteWorkerOptions{}, &s->clock);
      remote.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    // The first one that answers says what is served; the others may come later.
    const std::chrono::milliseconds look(100);
    while (true) {
      for (size_t i = 0; i < remote.size(); ++i) {
        if (!remote[i]->WaitReady(look)) continue;
        std::swap(workers.front(), workers[i]);
        GatewayOptions options;
        options.max_queued_requests = flags_.engine.max_queued_requests;
        s->gateway = std::make_unique<Gateway>(options, std::move(workers), &s->clock);
        return OkStatus();
      }
    }
  }

  CLI::App* app_ = nullptr;
  ServeFlags flags_;
  std::vector<std::string> workers_;
};

}  // namespace

std::unique_ptr<Command> MakeGatewayCommand() { return std::make_unique<GatewayCommand>(); }

}  // namespace deepinfer
