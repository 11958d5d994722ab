// deepinfer config print: the flags of `serve` with value and origin.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/effective_config.h"
#include "cli/serve_flags.h"

namespace deepinfer {
namespace {

class ConfigCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("config", "Show the configuration that `serve` would use");
    app_->add_option("ACTION", action_, "print")->required()->check(CLI::IsMember({"print"}));
    app_->add_flag("--effective", effective_, "Also show flags left at their default");
    flags_.Register(app_);
    app_->footer(
        "Takes the flags, environment and --config file of `serve`; secrets are hidden.\n"
        "Example:\n  DEEPINFER_PORT=9000 deepinfer config print --effective");
    return app_;
  }

  int Run(const FlagOrigins& origins) override {
    const std::vector<ConfigEntry> entries = EffectiveConfig(*app_, origins);
    for (const ConfigEntry& e : entries) {
      if (e.flag == "effective" || (!effective_ && e.origin == "default")) continue;
      fmt::print("{:<28} {:<32} {}\n", e.flag, e.value, e.origin);
    }
    return kExitOk;
  }

 private:
  CLI::App* app_ = nullptr;
  std::string action_;
  bool effective_ = false;
  ServeFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeConfigCommand() { return std::make_unique<ConfigCommand>(); }

}  // namespace deepinfer
