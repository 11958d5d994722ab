// What the parser of the command line lets pass and no flag means: values left out behind "=",
// numbers that are none, signs that wrap around.
// Thread rule: main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace deepinfer {

// Adds checks to every number that `app` and the commands below it take. Call it when all flags
// are registered.
void CheckNumbers(CLI::App* app);

// The first argument of the form "--flag=", whose value the parser would take from the next one.
std::optional<std::string> FindMissingValue(int argc, const char* const* argv);

CLI::Validator NotNegative();
CLI::Validator Positive();

// A whole number from least to most.
CLI::Validator WholeNumber(int64_t least, int64_t most);

}  // namespace deepinfer
