// Replays a recorded sequence of prompts through a whole store under virtual time: its index, its
// segments, its janitor with expiry, copying forward and eviction by value. Only the bytes of the
// blocks are made up. Beside trace_replay.h, which does so with the pool in memory.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/trace_replay.h"

namespace deepinfer {

struct StoreReplayOptions {
  int64_t capacity_blocks = 0;  // 0: no limit
  // Records of a segment; 0: what the released layout has, or fewer where the space would be less
  // than 40 segments.
  int64_t segment_records = 0;
  // Life of a block after its last use; 0: the seven days of class chat. The store counts it in 24
  // hours of its calendar, whatever it is: blocks stay up to one of these hours longer.
  int64_t ttl_ms = 0;
};

struct StoreReplayTotals {
  TraceTotals trace;           // reclaimed_blocks: left by expiry or before
  int64_t evicted_blocks = 0;  // of them before their deadline
  int64_t copied_blocks = 0;   // into newer segments
  int64_t removed_segments = 0;
  int64_t most_segments = 0;  // at one time
};

// Requests in order of their times. The errors of the store.
Result<StoreReplayTotals> ReplayTraceInStore(std::span<const TraceRequest> requests,
                                             int64_t id_tokens, const StoreReplayOptions& options);

}  // namespace deepinfer
