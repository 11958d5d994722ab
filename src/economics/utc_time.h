// Wall-clock instants as microseconds since 1970, and their RFC 3339 form with "Z".
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

// "2026-11-30T14:05:06.000123Z"
std::string FormatUtc(int64_t utc_us);

// Seconds may have up to six digits after the point; a date alone is its midnight. Nothing for
// anything else, other zones than Z included.
std::optional<int64_t> ParseUtc(std::string_view text);

// "20261130T14", the hour of an instant in file names.
std::string UtcHourName(int64_t utc_us);

}  // namespace deepinfer
