// What the planner sees and what it answers: plain values, so that a plan can be replayed.
// Thread rule: values.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sched/limits.h"
#include "sched/request_class.h"
#include "sched/step_time_model.h"

namespace deepinfer {

inline constexpr int64_t kNoDeadlineUs = std::numeric_limits<int64_t>::max();

// Fields shared by everything that holds blocks and may be parked.
struct Holding {
  int64_t id = 0;
  RequestClass request_class = RequestClass::kInteractive;
  int32_t held_blocks = 0;
  int32_t total_blocks = 0;     // at its longest
  int64_t computed_tokens = 0;  // since admission: what parking would put at risk
  int64_t last_parked_us = std::numeric_limits<int64_t>::min() / 2;
  int64_t predicted_remaining_us = 0;  // to its end
  bool can_park = true;                // false: a transfer reads its blocks
  bool busy = false;                   // rows in flight: cannot be parked in this step
};

// A sequence with its prompt behind it.
struct DecodeInput {
  Holding holding;
  int32_t next = 0;      // position of its next row
  int32_t num_rows = 1;  // 1 + most drafts; it may get fewer
  // Rows that its time is counted as: those it usually runs. 0: as many as it gets.
  int32_t timed_rows = 0;
  bool can_run = true;  // false: its client does not keep up, or it is being parked
};

// A sequence that needs rows before it can decode, or only its memory back (next == end).
struct PrefillInput {
  Holding holding;
  int64_t arrival_us = 0;
  int64_t deadline_us = kNoDeadlineUs;  // of its first token
  int64_t predicted_prefill_us = 0;     // to its first token
  int32_t next = 0;                     // first row to run
  int32_t end = 0;                      // one past the last one
  int32_t decoder_from = 0;
  bool only_decoder = false;  // its rows ran the layers below the decoder elsewhere
  bool admitted = false;      // holds a state slot
  int32_t hit_blocks = 0;     // shared blocks it takes when admitted
  int32_t hit_idle = 0;       // of these, blocks that are reclaimable now
  std::vector<int32_t> cuts;  // ascending positions at which a chunk must end
  int32_t skipped_steps = 0;
  int64_t skipped_since_us = 0;  // 0: not passed over yet
};

struct PoolInput {
  int32_t free_blocks = 0;
  int32_t reclaimable_blocks = 0;
  int32_t returning_blocks = 0;  // of sequences that are being parked or have ended
  int32_t free_slots = 0;

  int32_t available() const { return free_blocks + reclaimable_blocks; }
};

struct PlannerLimits {
  int32_t max_rows = 512;  // of a step
  int32_t max_sequences = 16;
  int32_t min_prefill_rows = kMinPrefillRows;
  int32_t prefill_every = kPrefillEvery;
  double prefill_share_max = kPrefillShareMax;
  int64_t tpot_target_us = kTpotTargetUs;
  int32_t max_skips = kMaxSkips;
};

// What one plan hands to the next.
struct PlannerMemory {
  int32_t steps_since_prefill = 0;  // with prefill waiting
  int64_t last_decoded_id = 0;      // where rotation goes on when decode rows exceed a step
  double batch_credit_rows = 0.0;
};

struct PlannerSnapshot {
  int64_t now_us = 0;
  std::vector<DecodeInput> decode;
  std::vector<PrefillInput> prefill;
  PoolInput pool;
  PlannerMemory memory;
};

struct DecodeRows {
  int64_t id = 0;
  int32_t num_rows = 0;
};

// num_rows 0: give back its memory only.
struct PrefillChunk {
  int64_t id = 0;
  int32_t start = 0;
  int32_t num_rows = 0;
};

struct StepPlan {
  std::vector<DecodeRows> decode;
  std::vector<PrefillChunk> prefill;
  std::vector<int64_t> park;     // sequences that must give up their memory
  std::vector<int64_t> skipped;  // candidates passed over
  StepRows rows;
  double predicted_us = 0;
  PlannerMemory memory;

  bool empty() const { return decode.empty() && prefill.empty(); }
};

}  // namespace deepinfer
