// Lifetimes of cached prompts as clients write them (api.md §7). Hosted values change often; this
// is the one table.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace deepinfer {

inline constexpr std::string_view kCacheLifetimeGrammar =
    "in_memory, in-memory, or an integer followed by m, h or d";

// Seconds; 0 for in_memory. Nothing if the text does not fit the grammar.
std::optional<int64_t> ParseCacheLifetimeSeconds(std::string_view text);

}  // namespace deepinfer
