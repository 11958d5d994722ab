// Which worker takes a request: prompts by when they would be done, answers by what their steps
// would cost (docs/cluster.md §4).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "sched/predicted_costs.h"
#include "sched/request_class.h"

namespace deepinfer {

// A worker as the router sees it.
struct RouteCandidate {
  bool usable = true;                // ready and not draining
  int32_t running = 0;               // live requests, waiting ones included
  int32_t max_running = 0;           // it can run at once, 0: unknown
  int64_t kv_tokens = 0;             // positions they hold
  int64_t free_tokens = 0;           // of the cache, 0: unknown
  int64_t queued_prompt_tokens = 0;  // rows of prompts not yet run
  PredictedCosts costs;
};

// True when the costs of every usable worker are known and near enough to what was measured. If
// one is in doubt all are compared by tokens, which are the same for all.
bool CostsAreKnown(std::span<const RouteCandidate> workers);

// Whether the worker takes one more request now: it holds what it runs and about one step of work
// beyond, so that the rest can still go elsewhere, or behind something more urgent. Work that
// nobody waits for has a part of that credit. A worker without work, or of unknown size, takes
// anything.
bool HasCredit(const RouteCandidate& worker, RequestClass request_class);

// What a request costs, in time of the worker: its prompt, and its share of the later steps it has
// a row in. Nothing when its costs are not known.
std::optional<double> WorkUs(const RouteCandidate& worker, const PromptWork& prompt,
                             int64_t output_tokens);

// Until a prompt is done on a worker with known costs.
double PromptDoneUs(const RouteCandidate& worker, const PromptWork& prompt);

// The index of the worker that is done with a prompt first: one without any work, else the least
// queued cost plus its own; without known costs the least queued rows, then fewest requests. Two
// that are within 2 % of each other are as good as equal, if the second has no more requests:
// `random` picks one of the best two, so that routers that see the same do not all do the same.
// Nothing when none is usable.
std::optional<size_t> ChoosePrefill(std::span<const RouteCandidate> workers,
                                    const PromptWork& prompt, uint64_t random);

// The index of the worker whose next step grows to the least: every request costs a row, every
// position it holds a small part of one. Workers without room for `tokens` come last; the first of
// equals wins. Nothing when none is usable.
std::optional<size_t> ChooseDecode(std::span<const RouteCandidate> workers, int64_t tokens);

// Time of a decode step of the worker with one more request of so many positions; its costs must be
// known.
double DecodeStepUs(const RouteCandidate& worker, int64_t tokens);

}  // namespace deepinfer
