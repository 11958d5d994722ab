#include "cli/command.h"

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/io.h"
#include "cli/ledger.h"

namespace deepinfer {

std::vector<std::unique_ptr<Command>> MakeCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeServeCommand());
  commands.push_back(MakeChatCommand());
  commands.push_back(MakeRunCommand());
  commands.push_back(MakeInspectCommand());
  commands.push_back(MakeBenchCommand());
  commands.push_back(MakeBenchCeilingsCommand());
  commands.push_back(MakeBenchKernelsCommand());
  commands.push_back(MakeBenchModelCommand());
  commands.push_back(MakeBenchEngineCommand());
  commands.push_back(MakeBenchReplayCommand());
  commands.push_back(MakeBenchRouterCommand());
  commands.push_back(MakeBenchServeCommand());
  commands.push_back(MakeTokenizeCommand());
  commands.push_back(MakeDetokenizeCommand());
  commands.push_back(MakeEncodeCommand());
  commands.push_back(MakeParseCommand());
  commands.push_back(MakeLogitsCommand());
  commands.push_back(MakeGenerateCommand());
  commands.push_back(MakeCalibrateCommand());
  commands.push_back(MakeKvCommand());
  commands.push_back(MakeLedgerCommand());
  commands.push_back(MakeWorkerCommand());
  commands.push_back(MakeGatewayCommand());
  commands.push_back(MakeClusterCommand());
  commands.push_back(MakeRegistryCommand());
  commands.push_back(MakeConfigCommand());
  commands.push_back(MakeVersionCommand());
  return commands;
}

int ReportFailure(const Status& status) {
  Tell("deepinfer: {}\n", status.message());
  return status.code() == StatusCode::kInvalidRequest ? kExitUsage : kExitFailure;
}

}  // namespace deepinfer
