// deepinfer cluster: a cluster on this machine, and a look at one.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/cluster_tools.h"
#include "cli/commands.h"
#include "cli/rolling_restart.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

class ClusterCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("cluster", "Run a cluster on this machine, look at one");
    app_->require_subcommand(1);
    tls_.Register(app_);
    up_ = app_->add_subcommand("up", "Start workers and a gateway; ends them on Ctrl-C");
    up_->add_option("MODEL", up_options_.model, "Model folder; default: the bundled demo model");
    up_->add_option("--workers", up_options_.num_all,
                    "Workers that do everything; 2 when no number is given")
        ->check(CLI::Range(0, 64));
    up_->add_option("--prefill", up_options_.num_prefill, "Workers that run prompts")
        ->check(CLI::Range(0, 64));
    up_->add_option("--decode", up_options_.num_decode, "Workers that run answers")
        ->check(CLI::Range(0, 64));
    up_->add_option("--registry", up_options_.registry,
                    "Let the gateway find the workers through etcd at HOST:PORT; dev = start a "
                    "registry too");
    up_->add_option("--host", up_options_.host, "Address of the gateway")->capture_default_str();
    up_->add_option("--port", up_options_.port, "TCP port of the gateway; 0 = a free one")
        ->check(WholeNumber(0, UINT16_MAX))
        ->capture_default_str();
    up_->add_option("--dir", up_options_.dir, "Logs and sockets; default: a new folder in /tmp");
    up_->add_option("--threads", up_options_.threads,
                    "Compute threads of a worker; 0 = the cores divided among them")
        ->capture_default_str();
    up_->add_option("--kv-dir", up_options_.kv_dir,
                    "Folder of a persistent cache that all workers share; default: none");
    up_->add_option(
           "--start-limit", up_options_.start_limit_s,
           "Seconds for new workers of a restart to become ready; then they are taken back")
        ->check(CLI::Range(1, 86400))
        ->capture_default_str();
    up_->add_option("--leave-limit", up_options_.leave_limit_s,
                    "Seconds for old workers of a restart to end; then they are killed")
        ->check(CLI::Range(1, 86400))
        ->capture_default_str();
    up_->add_option("--prefill-flag", up_options_.prefill_flags,
                    "Passed on to every worker that runs prompts, as "
                    "--prefill-flag=--hand-off=tail; may repeat");
    up_->add_option("--worker-flag", up_options_.worker_flags,
                    "Passed on to every worker, as --worker-flag=--max-num-seqs=4; may repeat");
    up_->add_option("--gateway-flag", up_options_.gateway_flags,
                    "Passed on to the gateway; may repeat");
    status_ = app_->add_subcommand("status", "Workers of a cluster with their load");
    status_->add_option("--dir", dir_, "Folder of the cluster")->required();
    status_->add_flag("--json", json_, "One JSON line instead of a table");
    drain_ = app_->add_subcommand("drain", "Take a worker out: it ends its requests, then itself");
    drain_->add_option("WORKER", drain_worker_, "Name or endpoint")->required();
    drain_->add_option("--dir", dir_, "Folder of the cluster, for names");
    drain_
        ->add_option("--within", drain_within_s_,
                     "Seconds for its requests; what is left continues elsewhere")
        ->check(CLI::Range(0.0, 86400.0))
        ->capture_default_str();
    top_ = app_->add_subcommand("top", "Watch the workers of a cluster, once a second");
    top_->add_option("--dir", dir_, "Folder of the cluster")->required();
    top_->add_option("--rounds", top_rounds_, "Tables to show; 0 = until Ctrl-C")
        ->check(NotNegative())
        ->capture_default_str();
    role_ = app_->add_subcommand("role", "Give a worker another role; what it runs goes on");
    role_->add_option("WORKER", drain_worker_, "Name or endpoint")->required();
    role_->add_option("ROLE", new_role_, "all, prefill or decode")
        ->required()
        ->check(CLI::IsMember({"all", "prefill", "decode"}));
    role_->add_option("--dir", dir_, "Folder of the cluster, for names");
    restart_ = app_->add_subcommand(
        "restart", "Replace all workers, group by group, while the cluster serves");
    restart_->add_option("--dir", dir_, "Folder of the cluster")->required();
    restart_->add_option("--revision", revision_, "Of the new workers; default: as they were");
    app_->footer(
        "Examples:\n"
        "  deepinfer cluster up --prefill 2 --decode 2 --port 8000 --dir /tmp/cluster\n"
        "  deepinfer cluster status --dir /tmp/cluster --json\n"
        "  deepinfer cluster drain decode-0 --dir /tmp/cluster");
    return app_;
  }

  int Run(const FlagOrigins&) override {
    const Result<SecurityPtr> security = tls_.Load();
    if (!security.ok()) return ReportFailure(security.status());
    Status status;
    if (up_->parsed()) {
      if (up_options_.kv_dir == "none") up_options_.kv_dir.clear();
      up_options_.tls = tls_;
      status = ClusterUp(up_options_);
    } else if (status_->parsed()) {
      status = PrintClusterStatus({dir_, *security}, json_);
    } else if (top_->parsed()) {
      status = ShowClusterTop({dir_, *security}, top_rounds_);
    } else if (role_->parsed()) {
      status = SetWorkerRole({dir_, *security}, drain_worker_, new_role_);
    } else if (restart_->parsed()) {
      status = AskRollingRestart(dir_, revision_);
    } else {
      status = DrainWorker({dir_, *security}, drain_worker_, drain_within_s_);
    }
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  CLI::App* app_ = nullptr;
  CLI::App* up_ = nullptr;
  CLI::App* top_ = nullptr;
  CLI::App* role_ = nullptr;
  CLI::App* status_ = nullptr;
  CLI::App* drain_ = nullptr;
  CLI::App* restart_ = nullptr;
  ClusterUpOptions up_options_;
  TlsFlags tls_;
  std::string dir_;
  bool json_ = false;
  std::string drain_worker_;
  double drain_within_s_ = 60;
  int top_rounds_ = 0;
  std::string new_role_;
  std::string revision_;
};

}  // namespace

std::unique_ptr<Command> MakeClusterCommand() { return std::make_unique<ClusterCommand>(); }

}  // namespace deepinfer
