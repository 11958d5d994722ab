// The configuration in force: every flag of a command with value and origin.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "cli/flag_sources.h"

namespace deepinfer {

struct ConfigEntry {
  std::string flag;
  std::string value;   // secrets are replaced by "***"
  std::string origin;  // "flag", "environment", "file", "default"
};

// Entries in the order of the help text; flags hidden there are left out.
std::vector<ConfigEntry> EffectiveConfig(const CLI::App& command, const FlagOrigins& origins);

// SHA-256 over flags and values, hexadecimal. Origins do not enter.
std::string ConfigHash(const std::vector<ConfigEntry>& entries);

}  // namespace deepinfer
