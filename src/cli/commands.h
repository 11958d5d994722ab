// Makers of the subcommands, one per file.
// Thread rule: main thread.
#pragma once

#include <memory>

#include "cli/command.h"

namespace deepinfer {

std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeRunCommand();
std::unique_ptr<Command> MakeChatCommand();
std::unique_ptr<Command> MakeInspectCommand();
std::unique_ptr<Command> MakeBenchCommand();
// Below MakeBenchCommand's.
std::unique_ptr<Command> MakeBenchCeilingsCommand();
std::unique_ptr<Command> MakeBenchEngineCommand();
std::unique_ptr<Command> MakeBenchKernelsCommand();
std::unique_ptr<Command> MakeBenchModelCommand();
std::unique_ptr<Command> MakeBenchReplayCommand();
std::unique_ptr<Command> MakeBenchRouterCommand();
std::unique_ptr<Command> MakeBenchServeCommand();
std::unique_ptr<Command> MakeTokenizeCommand();
std::unique_ptr<Command> MakeDetokenizeCommand();
std::unique_ptr<Command> MakeEncodeCommand();
std::unique_ptr<Command> MakeParseCommand();
std::unique_ptr<Command> MakeKvCommand();
std::unique_ptr<Command> MakeLogitsCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeCalibrateCommand();
std::unique_ptr<Command> MakeWorkerCommand();
std::unique_ptr<Command> MakeGatewayCommand();
std::unique_ptr<Command> MakeClusterCommand();
std::unique_ptr<Command> MakeRegistryCommand();
std::unique_ptr<Command> MakeConfigCommand();
std::unique_ptr<Command> MakeVersionCommand();

}  // namespace deepinfer
