// One subcommand of the binary: declares its flags, then runs.
// Thread rule: main thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/flag_sources.h"

namespace CLI {
class App;
}

namespace deepinfer {

// Exit codes of the binary (api.md §18).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

class Command {
 public:
  virtual ~Command() = default;
  // Adds the subcommand with its flags, help text and examples.
  virtual CLI::App* Register(CLI::App* app) = 0;
  // Called when the subcommand was chosen, after all flags have their values.
  virtual int Run(const FlagOrigins& origins) = 0;
};

// Every subcommand, in the order of the help text.
std::vector<std::unique_ptr<Command>> MakeCommands();

// Prints "deepinfer: <status>" to stderr and returns the exit code for it.
int ReportFailure(const Status& status);

}  // namespace deepinfer
