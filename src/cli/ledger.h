// `deepinfer ledger`, a family of subcommands of its own beside those of commands.h.
// Thread rule: main thread.
#pragma once

#include <memory>

#include "cli/command.h"

namespace deepinfer {

std::unique_ptr<Command> MakeLedgerCommand();

}  // namespace deepinfer
