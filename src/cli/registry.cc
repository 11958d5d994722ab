// deepinfer registry: who is there in a cluster, for tests and one machine.

#include <CLI/CLI.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/stop_signals.h"
#include "cluster/registry_server.h"

namespace deepinfer {
namespace {

class RegistryCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->add_subcommand(
        "registry", "Keep the list of a cluster's workers in memory, as etcd would");
    c->add_option("--listen", listen_, "unix:PATH or HOST:PORT; port 0 = chosen by the system")
        ->capture_default_str();
    c->footer(
        "For production run etcd and give its address to --registry of workers and gateways.\n"
        "Example:\n"
        "  deepinfer registry --listen 127.0.0.1:2379");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Serve();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Serve() {
    InitLogging(LogLevel::kInfo, LogFormat::kText);
    StopSignals signals;
    const SteadyClock clock;
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<RegistryServer> server,
                        RegistryServer::Listen(listen_, &clock));
    Log(LogLevel::kInfo, "registry.ready", {{"endpoint", server->endpoint()}});
    while (!signals.WaitFor(std::chrono::milliseconds(1000))) {
    }
    Log(LogLevel::kInfo, "registry.stopped");
    return OkStatus();
  }

  std::string listen_ = "127.0.0.1:2379";
};

}  // namespace

std::unique_ptr<Command> MakeRegistryCommand() { return std::make_unique<RegistryCommand>(); }

}  // namespace deepinfer
