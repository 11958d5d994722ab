// Values of flags that the command line left open: environment, then configuration file
// (api.md §18). The only place that reads the environment.
// Thread rule: main thread.
#pragma once

#include <map>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace deepinfer {

// Where each flag got its value: "flag", "environment", "file" or "default"; by flag name.
using FlagOrigins = std::map<std::string, std::string>;

// Gives every flag of the parsed subcommand that has no value yet the one of DEEPINFER_<FLAG>
// (dashes as underscores), else of the TOML file named by --config: keys with dashes or
// underscores, at the top or in the tables engine, server and kv. invalid_request for an unreadable
// file, an unknown key or table (with the nearest name), a flag that the file gives twice, or a bad
// value.
Result<FlagOrigins> FillFromEnvironmentAndFile(CLI::App* command);

}  // namespace deepinfer
