// deepinfer serve: the all-in-one server.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/serving.h"

namespace deepinfer {
namespace {

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
    const Status status = RunServing(
        &flags_, [this](const std::filesystem::path& dir, LoadProgress* progress,
                        Serving* serving) { return LoadAllInOne(dir, flags_, progress, serving); });
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  CLI::App* app_ = nullptr;
  ServeFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeServeCommand() { return std::make_unique<ServeCommand>(); }

}  // namespace deepinfer
