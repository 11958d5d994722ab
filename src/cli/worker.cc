// deepinfer worker: an engine for gateways in other processes.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/engine_loading.h"
#include "cli/registry_flags.h"
#include "cli/serve_flags.h"
#include "cli/stop_signals.h"
#include "cli/tls_flags.h"
#include "cli/value_checks.h"
#include "cluster/session.h"
#include "cluster/worker_service.h"
#include "economics/ledger_writer.h"
#include "server/overhead_log.h"
#include "server/request_account.h"
#ifdef DEEPINFER_TEST_HOOKS
#include "transfer/noisy_path.h"
#endif
#include "transfer/self_test.h"
#include "transfer/ucx.h"

namespace deepinfer {
namespace {

// A day; sums with the clock stay far from the end of its range.
constexpr int64_t kMaxDrainUs = int64_t{86'400} * 1'000'000;

// A worker without work tries itself so often (docs/cluster.md §5).
constexpr int64_t kSelfProbeUs = 10'000'000;

// Host of host:port without the brackets of IPv6.
std::string HostOf(const std::string& endpoint) {
  std::string host = endpoint.substr(0, endpoint.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

class WorkerCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app_ = app->add_subcommand("worker", "Run an engine that gateways use");
    flags_.RegisterWorker(c);
    c->add_option("--role", role_,
                  "prefill: prompts, handed over after the first token; decode: answers of prompts "
                  "that others ran; all: both")
        ->check(CLI::IsMember({"all", "prefill", "decode"}))
        ->capture_default_str();
    c->add_option("--transport", transport_,
                  "How states move between workers: shared memory on one machine, TCP, or auto; "
                  "ucx: by UCX (RDMA) to workers that were told so too, to others as auto")
        ->check(CLI::IsMember({"auto", "shm", "tcp", "ucx"}))
        ->capture_default_str();
    c->add_option("--ucx-transports", ucx_.transports,
                  "With --transport ucx: what it may use, in its own names, as rc,tcp or shm; "
                  "default: its own choice");
    c->add_option("--hand-off", hand_off_,
                  "What moves to the worker that runs the answer. full: state and first token; "
                  "store: the first token, blocks come from the shared cache; encoder, tail: what "
                  "is below the decoder, whose tail runs there")
        ->check(CLI::IsMember({"full", "store", "encoder", "tail"}))
        ->capture_default_str();
    c->add_option("--layers", layers_,
                  "encoder: load the layers below the decoder only, half of the weights; with "
                  "--role prefill and --hand-off encoder or tail")
        ->check(CLI::IsMember({"all", "encoder"}))
        ->capture_default_str();
    c->add_option("--listen", listen_, "unix:PATH or HOST:PORT; port 0 = chosen by the system")
        ->capture_default_str();
    c->add_option("--hand-off-memory-mb", hand_off_memory_mb_,
                  "Memory of states that are on their way to this worker, MiB")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--revision", revision_,
                  "Name of this deployment: states move only between workers of one revision");
#ifdef DEEPINFER_TEST_HOOKS
    c->add_option("--test-change-extents", change_extents_,
                  "Every so many extents of states one arrives with a changed byte; with --listen "
                  "unix:PATH only")
        ->check(Positive());
#endif
    registry_.RegisterWorker(c);
    tls_.Register(c);
    c->footer(
        "Examples:\n"
        "  deepinfer worker MODEL --listen 10.0.0.7:9100\n"
        "  deepinfer worker MODEL --role decode --listen 10.0.0.7:9100 --registry 10.0.0.1:2379");
    return c;
  }

  int Run(const FlagOrigins& origins) override {
    flags_.server.config_hash = ConfigHash(EffectiveConfig(*app_, origins));
    const Status status = Work();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Work() {
    InitLogging(flags_.log_level(), flags_.log_format());
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.model.ModelDir());
    DI_RETURN_IF_ERROR(flags_.Finish(dir));
    DI_RETURN_IF_ERROR(registry_.Check());
    DI_RETURN_IF_ERROR(CheckHandOff());
    DI_RETURN_IF_ERROR(CheckUcx());
    if (layers_ == "encoder") flags_.part = ModelPart::kEncoder;
    StopSignals signals;
    SteadyClock clock;
    const int64_t began_us = clock.NowUs();
    WorkerServiceOptions options;
    options.profile = Profile();
    options.sender.transport = Transport();
#ifdef DEEPINFER_TEST_HOOKS
    std::atomic<int> num_extents{0};
    if (change_extents_ > 0) {
      if (!listen_.starts_with("unix:")) {
        return InvalidRequest("--test-change-extents needs --listen unix:PATH");
      }
      options.sender.wrap_path = [&num_extents, this](std::unique_ptr<ExtentPath> path) {
        return std::make_unique<NoisyPath>(std::move(path), change_extents_, &num_extents,
                                           [] { Log(LogLevel::kWarning, "test.extent_changed"); });
      };
    }
#endif
    options.landing.max_bytes = hand_off_memory_mb_ << 20;
    options.revision = revision_;
    options.self_probe.idle_us = kSelfProbeUs;
    DI_ASSIGN_OR_RETURN(options.sender.security, tls_.Load());
    if (transport_ == "ucx") {
      DI_ASSIGN_OR_RETURN(options.sender.ucx, OpenUcx(ucx_));
    }
    if (!listen_.starts_with("unix:")) options.data_host = HostOf(listen_);
    // Beside the load of the weights.
    std::future<Result<HandOffTransport>> transport =
        std::async(std::launch::async, [this, options] { return TestTransports(options); });
    LoadProgress progress;
    EngineParts parts;
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                        LoadInProcessWorker(dir, flags_, FolderName(dir), *ParseWorkerRole(role_),
                                            &progress, &parts, &clock));
    if (hand_off_ == "store" && worker->info().kv_root.empty()) {
      return InvalidRequest("--hand-off store needs --kv-dir and --kv-shared");
    }
    DI_ASSIGN_OR_RETURN(options.sender.transport, transport.get());
    std::unique_ptr<LedgerWriter> ledger;
    if (!flags_.server.ledger_folder.empty()) {
      DI_ASSIGN_OR_RETURN(ledger, LedgerWriter::Open({.folder = flags_.server.ledger_folder}));
    }
    std::unique_ptr<OverheadLog> overhead;
    if (ledger) overhead = MakeOverheadLog(*worker, began_us, ledger.get());
    WorkerService service(options, worker.get(), &clock);
    std::atomic<int64_t> drain_within_us{-1};
    service.OnDrainAsked([&](int64_t within_us) {
      drain_within_us.store(std::clamp<int64_t>(within_us, 0, kMaxDrainUs),
                            std::memory_order_release);
    });
    DI_ASSIGN_OR_RETURN(
        const std::unique_ptr<SessionServer> sessions,
        SessionServer::Listen(
            listen_, [&](Session* session) { service.Serve(session); }, options.sender.security));
    auto registration = registry_.Announce(sessions->endpoint(), worker->info());
    Log(LogLevel::kInfo, "worker.ready",
        {{"endpoint", sessions->endpoint()},
         {"role", role_},
         {"incarnation", worker->info().incarnation}});
    while (drain_within_us.load(std::memory_order_acquire) < 0) {
      if (!signals.WaitFor(std::chrono::milliseconds(100))) continue;
      drain_within_us.store(static_cast<int64_t>(flags_.drain_timeout_s * 1e6));
    }
    Log(LogLevel::kInfo, "worker.draining",
        {{"timeout_s", static_cast<double>(drain_within_us.load()) * 1e-6}});
    registration.reset();
    Drain(&service, clock.NowUs() + drain_within_us.load(), &signals);
    sessions->Shutdown();
    Log(LogLevel::kInfo, "worker.stopped");
    return OkStatus();
  }

  // Requests are on the ledgers of gateways; what is left of the time of the device is on its own.
  std::unique_ptr<OverheadLog> MakeOverheadLog(const Worker& worker, int64_t began_us,
                                               LedgerWriter* ledger) const {
    const ServerOptions& options = flags_.server;
    OverheadScope scope;
    scope.build_commit = kCommit;
    scope.config_hash = options.config_hash;
    scope.model_name = worker.info().model_name;
    scope.host_id = LedgerHostName();
    scope.role = role_;
    if (!options.run_id.empty()) scope.run_id = options.run_id;
    return std::make_unique<OverheadLog>(
        std::move(scope), began_us * 1000,
        OverheadSource{.engines = [&worker] { return std::vector{worker.Statistics()}; }},
        options.cost_book.get(), ledger);
  }

  Status CheckHandOff() const {
    if (layers_ == "all" ||
        (role_ == "prefill" && (hand_off_ == "encoder" || hand_off_ == "tail"))) {
      return OkStatus();
    }
    return InvalidRequest("--layers encoder needs --role prefill and --hand-off encoder or tail");
  }

  Status CheckUcx() const {
    if (transport_ != "ucx") {
      if (ucx_.transports.empty()) return OkStatus();
      return InvalidRequest("--ucx-transports needs --transport ucx");
    }
    if (!tls_.certificate_file.empty()) {
      return InvalidRequest(
          "--transport ucx moves states in the clear: leave --tls-cert out, or "
          "choose another --transport");
    }
    return OkStatus();
  }

  HandOffProfile Profile() const {
    if (hand_off_ == "store") return HandOffProfile::kStore;
    if (hand_off_ == "encoder") return HandOffProfile::kEncoder;
    return hand_off_ == "tail" ? HandOffProfile::kTail : HandOffProfile::kFull;
  }

  HandOffTransport Transport() const {
    if (transport_ == "shm") return HandOffTransport::kSharedMemory;
    return transport_ == "tcp" ? HandOffTransport::kTcp : HandOffTransport::kAuto;
  }

  // What takes states from others is tried out first. Without shared memory there is TCP, and the
  // other way round where nobody asked for one of them.
  Result<HandOffTransport> TestTransports(const WorkerServiceOptions& options) const {
    HandOffTransport transport = options.sender.transport;
    if (role_ == "prefill") return transport;
    const bool is_auto = transport == HandOffTransport::kAuto;
    SelfTestOptions test;
    test.host = options.data_host;
    if (options.sender.ucx != nullptr) {
      test.way = SelfTestWay::kUcx;
      test.ucx = options.sender.ucx;
      DI_RETURN_IF_ERROR(TestTransport(test).Annotate("UCX"));
    }
    if (transport != HandOffTransport::kTcp) {
      test.way = SelfTestWay::kSharedMemory;
      const Status status = TestTransport(test);
      if (!status.ok() && !is_auto) return status.Annotate("shared memory");
      if (!status.ok()) {
        Log(LogLevel::kWarning, "worker.transport_off", {{"transport", "shm"}, {"status", status}});
        transport = HandOffTransport::kTcp;
      }
    }
    // With certificates states of other machines come over the session.
    if (options.sender.security != nullptr || transport == HandOffTransport::kSharedMemory) {
      return transport;
    }
    test.way = SelfTestWay::kTcp;
    const Status status = TestTransport(test);
    if (status.ok()) return transport;
    if (transport == HandOffTransport::kTcp) return status.Annotate("data connections");
    Log(LogLevel::kWarning, "worker.transport_off", {{"transport", "tcp"}, {"status", status}});
    return HandOffTransport::kSharedMemory;
  }

  // The second signal stops at once.
  static void Drain(WorkerService* service, int64_t deadline_us, StopSignals* signals) {
    std::atomic<bool> drained{false};
    std::thread drain([&] {
      service->Drain(deadline_us);
      drained.store(true, std::memory_order_release);
    });
    while (!drained.load(std::memory_order_acquire)) {
      if (signals->WaitFor(std::chrono::milliseconds(20))) service->Drain(0);
    }
    drain.join();
  }

  CLI::App* app_ = nullptr;
  ServeFlags flags_;
  RegistryFlags registry_;
  TlsFlags tls_;
  UcxOptions ucx_;
#ifdef DEEPINFER_TEST_HOOKS
  int change_extents_ = 0;
#endif
  std::string role_ = "all";
  std::string transport_ = "auto";
  std::string hand_off_ = "full";
  std::string layers_ = "all";
  int64_t hand_off_memory_mb_ = LandingOptions{}.max_bytes >> 20;
  std::string listen_ = "127.0.0.1:0";
  std::string revision_{kCommit};
};

}  // namespace

std::unique_ptr<Command> MakeWorkerCommand() { return std::make_unique<WorkerCommand>(); }

}  // namespace deepinfer
