// Which worker takes a request: prompts by the work that is queued, answers by what their steps
// would cost (docs/cluster.md §4).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace deepinfer {

// A worker as the router sees it.
struct RouteCandidate {
  bool usable = true;                // ready and not draining
  int32_t running = 0;               // live requests, waiting ones included
  int64_t kv_tokens = 0;             // positions they hold
  int64_t free_tokens = 0;           // of the cache, 0: unknown
  int64_t queued_prompt_tokens = 0;  // rows of prompts not yet run
};

// The index of the worker that starts a prompt first: least queued rows, then fewest requests, then
// the first. Nothing when none is usable.
std::optional<size_t> ChoosePrefill(std::span<const RouteCandidate> workers);

// The index of the worker whose next step grows to the least: every request costs a row, every
// position it holds a small part of one. Workers without room for `tokens` come last; the first of
// equals wins. Nothing when none is usable.
std::optional<size_t> ChooseDecode(std::span<const RouteCandidate> workers, int64_t tokens);

}  // namespace deepinfer
