// Replays a recorded sequence of prompts through the real block pool and the real index, to see
// what share of their tokens a cache of a given size or patience would have saved. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kvcache/keys.h"

namespace deepinfer {

// One prompt. Ids are prefix-chained: equal ids mean equal content and an equal prefix.
struct TraceRequest {
  int64_t time_ms = 0;
  int64_t input_tokens = 0;
  std::vector<uint64_t> ids;  // one per id_tokens tokens, the last one may be partial
};

// Stands for the block of an id. Its first bytes are uniform, as the pool and the index need it.
BlockKey TraceKey(uint64_t id);

struct TraceTotals {
  int64_t requests = 0;
  int64_t input_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t unique_blocks = 0;
  int64_t reclaimed_blocks = 0;
  double hit_rate() const {
    return input_tokens == 0 ? 0
                             : static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
  }
};

// Cuts every id into id_tokens / block_tokens blocks and keeps whole blocks only; equal sizes keep
// the ids as they are, a partial last one included.
// invalid_request when id_tokens is no multiple of block_tokens.
Result<std::vector<TraceRequest>> SplitIds(std::span<const TraceRequest> requests,
                                           int64_t id_tokens, int64_t block_tokens);

int64_t CountUniqueIds(std::span<const TraceRequest> requests);

// Requests in order of their times through a pool of capacity_blocks blocks of id_tokens tokens.
// resource_exhausted when one prompt alone needs more blocks than that.
Result<TraceTotals> ReplayTrace(std::span<const TraceRequest> requests, int64_t id_tokens,
                                int64_t capacity_blocks);

// The same, but what gives way is always the block whose next use is farthest in the future, of
// one prompt the deepest: what no cache that cannot see the future will pass.
TraceTotals ReplayTraceBelady(std::span<const TraceRequest> requests, int64_t id_tokens,
                              int64_t capacity_blocks);

// The same through the store's index without a limit of space: a block is there until ttl_ms after
// its last use; ttl_ms up to a day.
TraceTotals ReplayTraceTtl(std::span<const TraceRequest> requests, int64_t id_tokens,
                           int64_t ttl_ms);

}  // namespace deepinfer
