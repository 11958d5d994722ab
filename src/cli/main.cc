// The binary: picks the subcommand, fills its flags, runs it.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <clocale>
#include <csignal>
#include <string_view>

#include "base/version.h"
#include "cli/command.h"
#include "cli/flag_sources.h"
#include "cli/io.h"
#include "cli/suggest.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

// Names of one dash that other servers have, which the parser would take for single letters.
void SpellOutShortNames(int argc, char** argv) {
  static char parallel[] = "--parallel", tensor[] = "--tp", data[] = "--dp";
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--") return;
    if (name == "-np") argv[i] = parallel;
    if (name == "-tp") argv[i] = tensor;
    if (name == "-dp") argv[i] = data;
  }
}

int Main(int argc, char** argv) {
  SpellOutShortNames(argc, argv);
  // A reader that goes away must show as a failed write, not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"DeepInfer: serve and run DeepSeek-V4.1 models.", "deepinfer"};
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  deepinfer serve                         serve the bundled demo model on 127.0.0.1:8000\n"
      "  deepinfer chat                          talk to it in the terminal\n"
      "  deepinfer run models/deepinfer-tiny 'What is a KV cache?'\n"
      "  deepinfer COMMAND --help                flags of one command, with defaults and units");

  const std::vector<std::unique_ptr<Command>> commands = MakeCommands();
  std::vector<std::pair<CLI::App*, Command*>> registered;
  for (const auto& command : commands) {
    registered.emplace_back(command->Register(&app), command.get());
  }
  CheckNumbers(&app);
  if (const auto word = FindMissingValue(argc, argv)) {
    const std::string flag = word->substr(0, word->size() - 1);
    Tell("{}: no value behind '='; leave the flag out for its default\n", flag);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
    // A command below another one comes after it, and is the one that was meant.
    for (auto it = registered.rbegin(); it != registered.rend(); ++it) {
      const auto& [sub, command] = *it;
      if (!sub->parsed()) continue;
      const Result<FlagOrigins> origins = FillFromEnvironmentAndFile(sub);
      return origins.ok() ? command->Run(*origins) : ReportFailure(origins.status());
    }
  } catch (const std::system_error& e) {  // of fmt::print
    return ReportFailure(Unavailable(std::string("standard output: ") + e.what()));
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    SuggestNearest(app, argc, argv);
    return kExitUsage;
  }
  return kExitUsage;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
