// deepinfer serve: the all-in-one server.

#include <fmt/core.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <thread>

#include "base/process_stats.h"
#include "base/sha256.h"
#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/io.h"
#include "cli/load_display.h"
#include "cli/serve_flags.h"
#include "cluster/gateway.h"
#include "cluster/in_process_worker.h"
#include "server/server.h"

namespace deepinfer {
namespace {

// Blocks the stop signals in this thread and every thread started later, and reads them as data.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Waits for the next one; false on time-out.
  bool WaitFor(std::chrono::milliseconds timeout) {
    const timespec t{static_cast<time_t>(timeout.count() / 1000),
                     static_cast<long>(timeout.count() % 1000) * 1000000};
    return sigtimedwait(&set_, nullptr, &t) > 0;
  }

 private:
  sigset_t set_;
};

// What a loaded model needs to serve; destroyed in reverse order of members.
struct Serving {
  SteadyClock clock;
  ModelBundle bundle;
  std::unique_ptr<KvCache> cache;
  SpecialTokens special;
  std::unique_ptr<Gateway> gateway;
};

class ServeCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("serve", "Serve a model over HTTP");
    flags_.Register(app_);
    app_->footer(
        "Every flag may also come from DEEPINFER_<FLAG> or a TOML file (--config).\n"
        "Examples:\n"
        "  deepinfer serve\n"
        "  deepinfer serve /models/DeepSeek-V4.1-Flash --port 9000 --api-key-file keys.txt");
    return app_;
  }

  int Run(const FlagOrigins& origins) override {
    flags_.server.config_hash = ConfigHash(EffectiveConfig(*app_, origins));
    const Status status = Serve();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Serve() {
    InitLogging(flags_.log_level(), flags_.log_format());
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.model.ModelDir());
    DI_RETURN_IF_ERROR(flags_.Finish(dir));
    DI_ASSIGN_OR_RETURN(BundleOptions bundle_options, flags_.model.Bundle());
    bundle_options.model.max_positions = flags_.engine.max_model_len;
    bundle_options.grammars = flags_.grammars;

    StopSignals signals;
    LoadProgress progress;
    Serving serving;
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                        Server::Start(flags_.server, &progress));

    // Loading runs beside the signal loop, so that a stop during a long load is obeyed.
    Status load_status;
    std::atomic<bool> loaded{false};
    std::thread loader([&] {
      load_status = Load(dir, bundle_options, &progress, &serving, server.get());
      loaded.store(true, std::memory_order_release);
    });
    bool load_seen = false, stop = false;
    while (!stop) {
      stop = signals.WaitFor(std::chrono::milliseconds(100));
      if (!load_seen && loaded.load(std::memory_order_acquire)) {
        load_seen = true;
        if (!load_status.ok()) break;
      }
    }
    if (!load_seen && stop) {
      Log(LogLevel::kInfo, "server.stopping", {{"reason", "signal while loading"}});
      // The mapped files and threads of a half-loaded model need no clean-up.
      std::_Exit(kExitOk);
    }
    loader.join();
    if (load_status.ok()) DrainAndStop(server.get(), &signals);
    server->Stop();
    return load_status;
  }

  Status Load(const std::filesystem::path& dir, const BundleOptions& options,
              LoadProgress* progress, Serving* serving, Server* server) {
    const Status status = LoadParts(dir, options, progress, serving);
    if (!status.ok()) {
      server->SetFailed(status);
      return status;
    }
    ModelContext context;
    context.tokenizer = serving->bundle.tokenizer.get();
    context.gateway = serving->gateway.get();
    context.special = serving->special;
    context.cache_secret = serving->cache->secret;
    context.card.tokenizer_hash = tokenizer_hash_;
    context.card.created_s = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
    progress->Set(LoadPhase::kReady, 0, 0);
    server->Attach(context);
    const LoadReport load = serving->gateway->Load();
    // Benchmark drivers search for this line, also on a CPU.
    fmt::print(stderr, "GPU KV cache size: {} tokens\n", load.kv_capacity_tokens);
    Log(LogLevel::kInfo, "model.ready",
        {{"numerics", serving->gateway->info().numerics_id},
         {"max_model_len", serving->gateway->info().max_model_len},
         {"threads", serving->bundle.pool->num_threads()}});
    LogMemory(*serving->bundle.model, load);
    return status;
  }

  // What the process holds now that everything is loaded.
  static void LogMemory(const Model& model, const LoadReport& load) {
    const ResidentMemory resident = ReadResidentMemory();
    const int64_t kv_bytes =
        KvLayout::NumBlocks(load.kv_capacity_tokens) * model.layout().block_bytes;
    Log(LogLevel::kInfo, "model.memory",
        {{"checkpoint_bytes", model.checkpoint().total_bytes()},
         {"kv_cache_bytes", kv_bytes},
         {"resident_anonymous_bytes", resident.anonymous_bytes},
         {"resident_file_bytes", resident.file_bytes}});
  }

  Status LoadParts(const std::filesystem::path& dir, const BundleOptions& options,
                   LoadProgress* progress, Serving* s) {
    {
      const LoadDisplay display(progress, true);
      DI_ASSIGN_OR_RETURN(s->bundle, ModelBundle::Load(dir, options, progress));
    }
    progress->Set(LoadPhase::kWarmup, 0, 0);
    DI_ASSIGN_OR_RETURN(s->special, SpecialTokens::Resolve(*s->bundle.tokenizer));
    DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(dir / "tokenizer.json"));
    tokenizer_hash_ = Sha256Hex(text);
    DI_ASSIGN_OR_RETURN(s->cache, flags_.kv.Open(*s->bundle.model, dir, &s->clock));
    EngineOptions engine_options = flags_.engine;
    engine_options.sampling_pool = s->bundle.pool.get();
    DI_ASSIGN_OR_RETURN(engine_options.step_time_file, StepTimeFile(dir, options, s->bundle));
    DI_ASSIGN_OR_RETURN(auto engine,
                        Engine::Create(s->bundle.model.get(), engine_options, &s->clock,
                                       s->bundle.grammars.get(), s->cache->store.get()));
    std::vector<std::unique_ptr<Worker>> workers;
    workers.push_back(std::make_unique<InProcessWorker>(flags_.server.served_model_names.front(),
                                                        s->bundle.model.get(), std::move(engine)));
    s->gateway = std::make_unique<Gateway>(GatewayOptions{flags_.engine.max_queued_requests},
                                           std::move(workers), &s->clock);
    return OkStatus();
  }

  // A file for everything that step times depend on; "" without a folder.
  Result<std::string> StepTimeFile(const std::filesystem::path& dir, const BundleOptions& options,
                                   const ModelBundle& bundle) const {
    if (flags_.perf_curve_dir.empty()) return std::string();
    DI_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(dir / "config.json"));
    const std::string name =
        Sha256Hex(fmt::format("{}\n{}\n{}\n{}", config, bundle.model->numerics_id(),
                              IsaLevelName(options.isa), bundle.pool->num_threads()));
    const std::filesystem::path folder(flags_.perf_curve_dir);
    return (folder / ("step_time-" + name.substr(0, 16))).string();
  }

  // The first signal drains, the second stops at once.
  void DrainAndStop(Server* server, StopSignals* signals) {
    Log(LogLevel::kInfo, "server.draining", {{"timeout_s", flags_.drain_timeout_s}});
    const auto deadline =
        std::chrono::steady_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(flags_.drain_timeout_s * 1000));
    std::atomic<bool> drained{false};
    std::thread drain([&] {
      server->Drain(deadline);
      drained.store(true, std::memory_order_release);
    });
    while (!drained.load(std::memory_order_acquire)) {
      if (!signals->WaitFor(std::chrono::milliseconds(20))) continue;
      Log(LogLevel::kWarning, "server.stopping", {{"reason", "second signal"}});
      server->Drain(std::chrono::steady_clock::now());
    }
    drain.join();
    Log(LogLevel::kInfo, "server.stopped");
  }

  CLI::App* app_ = nullptr;
  ServeFlags flags_;
  std::string tokenizer_hash_;
};

}  // namespace

std::unique_ptr<Command> MakeServeCommand() { return std::make_unique<ServeCommand>(); }

}  // namespace deepinfer
