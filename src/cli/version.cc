// deepinfer version.

#include "base/version.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "base/cpu_features.h"
#include "cli/build_info.h"
#include "cli/commands.h"

namespace deepinfer {
namespace {

class VersionCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    return app->add_subcommand("version", "Version, commit and build of this binary");
  }

  int Run(const FlagOrigins&) override {
    fmt::print("deepinfer {}\ncommit {}\nbuild {}, {}{}\ncpu {}\n", kVersion, kCommit, kBuildType,
               kCompiler, kHasTestHooks ? ", test hooks" : "", IsaLevelName(DetectIsaLevel()));
    return kExitOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeVersionCommand() { return std::make_unique<VersionCommand>(); }

}  // namespace deepinfer
