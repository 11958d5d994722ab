#include "cli/serving.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/sha256.h"
#include "base/utc_clock.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/stop_signals.h"
#include "cluster/in_process_worker.h"

namespace deepinfer {

namespace {

// Of a model as hubs lay it out: DIR/snapshots/REVISION.
std::string RevisionOf(const std::filesystem::path& dir) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(dir, error).lexically_normal();
  const std::filesystem::path folder = whole.has_filename() ? whole : whole.parent_path();
  return folder.parent_path().filename() == "snapshots" ? folder.filename().string() : "";
}

void DrainAndStop(double timeout_s, Server* server, StopSignals* signals) {
  Log(LogLevel::kInfo, "server.draining", {{"timeout_s", timeout_s}});
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
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

}  // namespace

Status LoadAndAttach(const std::filesystem::path& dir, const LoadParts& load_parts,
                     LoadProgress* progress, Serving* serving, Server* server) {
  Status status = load_parts(dir, progress, serving);
  const Result<std::string> text = ReadTextFile(dir / "tokenizer.json");
  if (status.ok()) status = text.status();
  if (!status.ok()) {
    server->SetFailed(status);
    return status;
  }
  serving->tokenizer_hash = Sha256Hex(*text);
  ModelContext context;
  context.tokenizer = serving->engine.bundle.tokenizer.get();
  context.gateway = serving->gateway.get();
  context.special = serving->special;
  context.cache_secret = serving->cache_secret;
  context.replay_folder = serving->replay_folder;
  context.owns_devices = serving->engine.owns_devices();
  context.card.tokenizer_hash = serving->tokenizer_hash;
  context.card.revision =
      serving->model_revision.empty() ? RevisionOf(dir) : serving->model_revision;
  context.card.weights_hash = serving->gateway->info().weights_hash;
  context.card.created_s = UtcNow<std::chrono::seconds>();
  progress->Set(LoadPhase::kReady, 0, 0);
  server->Attach(context);
  return OkStatus();
}

Status LoadAllInOne(const std::filesystem::path& dir, const ServeFlags& flags,
                    LoadProgress* progress, Serving* serving) {
  DI_ASSIGN_OR_RETURN(
      std::unique_ptr<Worker> worker,
      LoadInProcessWorker(dir, flags, flags.server.served_model_names.front(), WorkerRole::kAll,
                          progress, &serving->engine, &serving->clock));
  DI_ASSIGN_OR_RETURN(serving->special, SpecialTokens::Resolve(*serving->engine.bundle.tokenizer));
  serving->cache_secret = serving->engine.cache->secret;
  serving->replay_folder = serving->engine.cache->replay_folder;
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(worker));
  serving->gateway =
      std::make_unique<Gateway>(flags.gateway_options(), std::move(workers), &serving->clock);
  return OkStatus();
}

Status RunServing(ServeFlags* flags, const LoadParts& load_parts) {
  InitLogging(flags->log_level(), flags->log_format());
  DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags->model.ModelDir());
  DI_RETURN_IF_ERROR(flags->Finish(dir));

  StopSignals signals;
  LoadProgress progress;
  Serving serving;
  serving.model_revision = flags->model_revision;
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                      Server::Start(flags->server, &progress));

  // Loading runs beside the signal loop, so that a stop during a long load is obeyed.
  Status load_status;
  std::atomic<bool> loaded{false};
  std::thread loader([&] {
    load_status = LoadAndAttach(dir, load_parts, &progress, &serving, server.get());
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
  if (load_status.ok()) DrainAndStop(flags->drain_timeout_s, server.get(), &signals);
  server->Stop();
  return load_status;
}

}  // namespace deepinfer
