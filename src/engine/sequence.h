// One request inside the engine: its state, tokens, cache, account and schedule.
// Thread rule: engine thread, except DeviceRows, which the thread that runs steps reads and writes
// while a job names the sequence. Owner: EngineState.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/delivery.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/token_constraint.h"
#include "kvcache/block_load.h"
#include "kvcache/keys.h"
#include "kvcache/replay_plan.h"
#include "model/model.h"
#include "sched/draft_policy.h"

namespace deepinfer {

class GrammarTicket;

enum class SequenceState : uint8_t {
  kPending,     // its grammar is being compiled, or a branch waits for the prompt of its leader
  kLoading,     // blocks of its prompt come from the store
  kQueued,      // schedulable, holds nothing
  kPrefilling,  // at least one chunk launched
  kRunning,     // decodes
  kParking,     // waits for its rows in flight, then gives up its memory
  kParked,      // holds nothing on the device
  kResuming,    // rebuilds lost state
  kFinished,    // terminal states; memory may still be held for one step
  kCancelled,
  kFailed,
};

constexpr bool IsTerminal(SequenceState s) { return s >= SequenceState::kFinished; }

// Hidden rows of committed positions that are not in the draft rings yet (dspark.md §2): they get
// there together, before the next drafts. They outlive a park.
struct PendingContext {
  int32_t kept_from = 0;  // rows of lower positions are lost to the drafts
  int32_t start = 0;      // position of the first row
  int32_t num_rows = 0;
  std::vector<float> rows;  // f32 [num_rows, targets·dim]
};

// What steps read and write. Sized once on admission, so that both threads may use disjoint parts.
struct DeviceRows {
  std::unique_ptr<int32_t[]> tokens;  // by absolute position: prompt, then decided ids
  std::unique_ptr<int32_t[]> block_table;
  std::optional<Sampler> sampler;
  std::optional<TokenConstraint> constraint;  // with a grammar
  int32_t max_forced = 0;                     // tokens without a choice that one step may append
  // Touched by the step thread only.
  int32_t num_decided = 0;   // tokens decided by steps
  int32_t next = 0;          // once it decodes: the first position whose row is still to run
  bool ended = false;        // the last decided token ends the request
  bool drafts_fail = false;  // the target's rows of drafts were not finite: no more drafts
  int32_t num_verifications = 0;
  PendingContext context;
  // Kept rows at the cut [prompt_len - decoder_origin, CutRowFloats]: written by the steps of a
  // prompt that is handed over there, read by those of one that was.
  std::vector<float> cut_rows;
};

// Window state copied at a block edge.
struct EdgeSnapshot {
  int32_t edge = 0;
  std::vector<std::byte> rings;
};

struct SequenceCache {
  explicit SequenceCache(const KeyOrigin& origin) : chain(origin) {}

  KeyChain chain;             // keys of all complete blocks so far
  int32_t num_blocks = 0;     // entries of the block table in use
  int32_t num_published = 0;  // leading blocks that are complete and offered to the index
  int32_t num_exported = 0;   // leading blocks that the state sink got
  // Of a parked sequence that was handed over at the cut, whose state is ahead of its rows.
  int32_t image_positions = 0;
  int32_t slot = -1;
  int32_t write_from = 0;      // H: rows below write no global KV
  int32_t window_floor = 0;    // v
  int32_t first_row = 0;       // s of the first admission
  int32_t first_floor = 0;     // v of the first admission
  int32_t whole_from = 0;      // ReplayPlan::whole_from, of the last replay or rebuild
  int32_t decoder_origin = 0;  // K0
  int32_t decoder_from = 0;    // first row that runs the decoder
  int32_t decoder_floor = 0;   // lowest decoder window key: K0, or D after a rebuild
  uint16_t replay_gen = 0;
  std::shared_ptr<EdgeSnapshot> last_edge;  // of generated text
};

// What an admission would find; valid until the pool changes.
struct HitProbe {
  bool valid = false;
  int32_t hit_blocks = 0;
  int32_t hit_idle = 0;  // of these, reclaimable ones
  ReplayPlan plan;

  // Equal rows on equal blocks; those may be of another lineage by now.
  bool operator==(const HitProbe& o) const {
    return hit_blocks == o.hit_blocks && plan.first_row == o.plan.first_row &&
           plan.window_clamp == o.plan.window_clamp && plan.uses_snapshot == o.plan.uses_snapshot;
  }
};

// Blocks of the prompt on their way from the store into the pool.
struct SequenceLoad {
  std::unique_ptr<KvLoad> handle;  // null: not begun, or over
  int32_t first_block = 0;         // those before it were in memory
  int32_t num_wanted = 0;
  std::vector<bool> from_peer;  // of the wanted: another process wrote it
  int32_t num_loaded = 0;     // blocks [first_block, first_block + num_loaded) came from the store
  std::vector<int32_t> held;  // blocks of the pool it keeps from being reclaimed, in chain order
  int64_t began_us = 0;
  int64_t next_look_us = 0;             // at the store, for blocks that are expected there
  int64_t deadline_us = 0;              // of the wait and of the load; 0 before the first look
  int32_t num_expected = 0;             // blocks that the store is about to hold,
  int64_t expected_until_us = 0;        // and how long that is waited for
  MissReason miss = MissReason::kNone;  // of the first block it did not get
  bool was_tried = false;               // for the memory that it waits for
};

struct SequenceSchedule {
  int64_t submitted_us = 0;
  int64_t started_us = 0;
  int64_t prefilled_us = 0;
  int64_t blocks_charged_us = 0;  // until when its blocks are counted; 0: it holds none
  static constexpr int64_t kNeverUs = INT64_MIN / 2;
  int64_t last_parked_us = kNeverUs;
  int64_t stalled_since_us = 0;  // its receiver does not keep up; 0: it does
  int32_t skipped_steps = 0;
  int64_t skipped_since_us = 0;
  int64_t predicted_prefill_us = 0;
  int32_t num_in_flight = 0;  // jobs that name it and were not processed
  HitProbe probe;
};

struct SequenceGrammar {
  std::shared_ptr<const GrammarTicket> ticket;  // asked for on submission
  bool uses_fallback = false;
  std::shared_ptr<const CompiledGrammar> compiled;
};

// Drafts that are made though they do not pay: to see whether they might.
struct DraftTry {
  bool is_try = false;
  bool is_free = false;  // takes nothing from the allowance, and verifies all of its drafts
  double pass_us = 0;    // what it takes
  double row_us = 0;     // what the row of a draft takes
  double token_us = 0;   // what every accepted draft gives back
};

// What drafting did for a sequence so far, as seen on the engine thread.
struct DraftHistory {
  DraftRecord record;
  // For the next step, where drafts are scheduled.
  bool may_draft = false;
  DraftTry draft_try;
};

struct Sequence {
  Sequence(EngineRequest r, TokenSink s, const KeyOrigin& origin)
      : request(std::move(r)),
        sink(std::move(s)),
        cache(origin),
        prompt_len(static_cast<int32_t>(request.prompt_ids.size())) {
    counters.prompt_tokens = prompt_len;
  }

  int64_t id = 0;  // in order of arrival, given by the engine
  EngineRequest request;
  TokenSink sink;
  SequenceState state = SequenceState::kQueued;
  DeviceRows device;
  SequenceGrammar grammar;
  SequenceCache cache;
  SequenceLoad load;
  SequenceSchedule schedule;
  DraftHistory drafts;
  std::shared_ptr<DeliveryWindow> window;

  const int32_t prompt_len;
  int32_t launched = 0;     // positions whose rows were launched, at most
  int32_t unsure = 0;       // of these, rows of drafts that may be refused
  int32_t computed = 0;     // positions whose rows were processed
  int32_t rebuild_end = 0;  // rows below are run again after a lost image
  int32_t counted = 0;      // positions of the prompt that its counters cover
  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t num_generated = 0;
  int32_t num_emitted = 0;  // of these, the ones its receiver got or had from another engine
  RequestCounters counters;

  std::vector<int64_t> branches;  // sequences that wait for this prompt
  int64_t forked_from = 0;

  bool holds_slot() const { return cache.slot >= 0; }
  // Another engine decides the first token.
  bool hands_over_undecided() const {
    return request.hand_off == HandOffProfile::kEncoder ||
           request.hand_off == HandOffProfile::kTail;
  }
  // The layers below the decoder ran elsewhere for what is left of its prompt.
  bool begins_at_cut() const { return !hands_over_undecided() && !device.cut_rows.empty(); }
  // As its cost counts: rows that leave at the cut run no decoder here.
  int32_t cost_decoder_from() const {
    return hands_over_undecided() ? prompt_len : cache.decoder_from;
  }
  // Positions that its image covers, and that a parked one needs memory for. The blocks of a hit
  // and a state from elsewhere are ahead of its rows.
  int32_t image_positions() const {
    return std::max({computed, cache.write_from, cache.image_positions});
  }
  // Positions whose rows ran once, though some may have to run again.
  int32_t reached() const { return std::max(computed, rebuild_end); }
  // While it waits for its memory: another engine began it and decided tokens.
  bool taken_over() const { return num_generated > 0; }
  bool was_parked() const { return schedule.last_parked_us != SequenceSchedule::kNeverUs; }
  // Without its state it goes on from rows that run again, not from its prompt.
  bool resumes() const { return taken_over() || was_parked(); }
  // One past the last row of the prompt that runs here.
  int32_t prompt_end() const {
    return request.hand_off == HandOffProfile::kTail ? cache.decoder_origin : prompt_len;
  }
  bool wants_prompt_logprobs() const { return request.sampling.prompt_logprobs; }
  // One past the last row to run before it decodes.
  int32_t prefill_end() const { return std::max(prompt_end(), rebuild_end); }
  // One past the last position whose token is known.
  int32_t known_end() const { return prompt_len + num_generated; }
  // Tokens that launched rows decide or have decided, at least. Forced tokens are known before
  // their rows.
  int32_t num_expected() const {
    return launched < prompt_len || launched < rebuild_end
               ? num_generated
               : std::max(num_generated, launched - unsure - prompt_len + 1);
  }
  // Positions it can ever compute.
  int32_t max_positions(int32_t max_model_len) const {
    const int64_t longest = int64_t{prompt_len} + request.sampling.max_tokens;
    return static_cast<int32_t>(std::min<int64_t>(longest, max_model_len));
  }
};

}  // namespace deepinfer
