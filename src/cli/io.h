// Standard input, token id files and JSON lines of the tool commands.
// Thread rule: main thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// All of standard input.
Result<std::string> ReadStdin();
Result<std::string> ReadTextFile(const std::string& path);

// Replaces the file; unavailable when it cannot be written whole.
Status WriteTextFile(const std::string& path, std::string_view text);

// [1, 2, 3] -> ids. invalid_request names what is wrong.
Result<std::vector<int32_t>> ParseIdArray(const std::string& json);
// {"ids": [1, 2, 3]} -> ids, for the field "ids".
Result<std::vector<int32_t>> ParseIdObject(const std::string& json, std::string_view field = "ids");

// "[1,2,3]".
std::string IdArrayJson(std::span<const int32_t> ids);
// A JSON string literal with quotes; the input is valid UTF-8.
std::string JsonString(std::string_view text);

// To standard error. That nobody reads it any more is no reason to stop.
void TellText(std::string_view text);
template <typename... Args>
void Tell(fmt::format_string<Args...> format, Args&&... args) {
  TellText(fmt::format(format, std::forward<Args>(args)...));
}

// One line on standard output; unavailable when the reader is gone or the disk is full.
Status PrintLine(std::string_view line);

}  // namespace deepinfer
