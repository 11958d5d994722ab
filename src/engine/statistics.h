// What one engine has done since it started and how it stands now: the source of every metric and
// of the periodic log line (docs/api.md §16).
// Thread rule: values. The engine's step thread fills one and hands out copies.
// Owner: Engine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/miss_reason.h"
#include "sched/predicted_costs.h"
#include "sched/request_class.h"
#include "text/grammar_stats.h"

namespace deepinfer {

// Counts of observations between fixed bounds. Copying is a few hundred bytes, so that a snapshot
// after every step costs nothing.
class StatHistogram {
 public:
  static constexpr size_t kMaxBounds = 24;

  // bounds: ascending upper ends, static storage, at most kMaxBounds.
  explicit constexpr StatHistogram(std::span<const double> bounds) : bounds_(bounds) {}

  // num equal observations.
  void Observe(double value, int64_t num = 1) {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(at)] += num;
    sum_ += value * static_cast<double>(num);
  }

  std::span<const double> bounds() const { return bounds_; }
  // One more than bounds: the last counts what lies above all of them.
  std::span<const int64_t> counts() const { return {counts_.data(), bounds_.size() + 1}; }
  double sum() const { return sum_; }

  // Takes over what a histogram with the same bounds counted elsewhere.
  void Restore(std::span<const int64_t> counts, double sum) {
    std::copy_n(counts.begin(), std::min(counts.size(), counts_.size()), counts_.begin());
    sum_ = sum;
  }

 private:
  std::span<const double> bounds_;
  std::array<int64_t, kMaxBounds + 1> counts_{};
  double sum_ = 0;
};

namespace stat_bounds {
inline constexpr double kStepSeconds[] = {.0005, .001, .002, .004, .006, .008, .01, .015, .02, .03,
                                          .04,   .05,  .075, .1,   .15,  .2,   .3,  .5,   1,   2};
inline constexpr double kRows[] = {1,   2,   4,    8,    16,   32,   64,    128,
                                   256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
inline constexpr double kShare[] = {.01, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1};
inline constexpr double kTokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
inline constexpr double kLoadSeconds[] = {.0005, .001, .002, .005, .01, .02, .05, .1,
                                          .2,    .5,   1,    2,    5,   10,  30};
inline constexpr double kReplayGen[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 255};
inline constexpr double kBlockSeconds[] = {.01, .1, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600};
}  // namespace stat_bounds

enum class StepKind : unsigned char { kPrefill, kDecode, kMixed };
inline constexpr size_t kNumStepKinds = 3;

enum class CacheTier : unsigned char { kDevice, kDram, kDisk, kRemote };
inline constexpr size_t kNumCacheTiers = 4;

// Names as in usage and metrics.
constexpr std::string_view CacheTierName(CacheTier tier) {
  constexpr std::string_view kNames[] = {"device", "dram", "disk", "remote"};
  return kNames[static_cast<size_t>(tier)];
}

// How window state behind a hit was rebuilt.
enum class WindowRebuild : unsigned char { kSnapshot, kBounded, kExact };
inline constexpr size_t kNumWindowRebuilds = 3;

inline constexpr size_t kMaxDraftTokens = 5;

struct EngineStatistics {
  // Whose they are, where there are several: a name that a restart keeps, and a number that it
  // changes. Set by whoever has several.
  std::string name;
  uint64_t incarnation = 0;

  // Now.
  int32_t running = 0;
  int32_t waiting = 0;                                            // QUEUED and LOADING
  std::array<int32_t, kRequestClasses.size()> queued_by_class{};  // QUEUED
  int32_t pending = 0;  // waiting for a grammar, an image or a hand-off
  int32_t parked = 0;
  int32_t loading = 0;  // part of waiting: blocks come from the store
  // Much is written to the store and next to nothing read.
  bool write_without_read = false;
  int64_t waiting_prompt_tokens = 0;    // rows that the waiting and unfinished prompts still need
  int64_t remaining_output_tokens = 0;  // of running and waiting requests: max_tokens - generated
  int64_t kv_tokens = 0;                // positions held by live sequences
  int64_t kv_capacity_tokens = 0;
  int64_t blocks_total = 0;
  int64_t blocks_used = 0;    // referenced by live sequences
  int64_t blocks_cached = 0;  // idle, kept for later prompts
  int64_t slots_total = 0;
  int64_t slots_used = 0;
  int64_t undelivered_events = 0;  // with the receivers of live requests
  int64_t step_max_context = 0;    // longest of the last step
  // Rows of the busiest expert over those of the mean one, mean over layers, of the last whole
  // window of steps; in thousandths, 0 before the first one ended.
  int64_t expert_load_milli = 0;
  int64_t flops_per_second = 0;  // of recent forward passes
  int64_t peak_flops = 0;        // of the machine, a second; 0: unknown
  PredictedCosts costs;

  // Since the start.
  int64_t steps = 0;
  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
  int64_t attended_tokens = 0;      // sum over rows of the positions up to theirs
  int64_t kiloflops = 0;            // of rows without those of the draft model
  int64_t attention_kiloflops = 0;  // of these: attention cores and index scans
  int64_t cached_tokens = 0;        // prompt tokens taken from the cache
  int64_t computed_tokens = 0;      // prompt rows run, replayed ones included
  int64_t replayed_tokens = 0;
  int64_t generated_tokens = 0;
  std::array<int64_t, kNumCacheTiers> cached_by_tier{};
  std::array<int64_t, kNumCacheTiers> hit_by_tier{};      // whole blocks found: cached + replayed
  std::array<int64_t, kNumMissReasons> miss_tokens{};     // of whole blocks not found
  std::array<int64_t, kNumWindowRebuilds> replayed_by{};  // adds up to replayed_tokens
  int64_t store_loads = 0;                                // begun
  int64_t store_loads_partial = 0;                        // ended without all they wanted
  int64_t drafts = 0;        // verifications: one of a request in one step
  int64_t draft_tokens = 0;  // verified
  int64_t draft_accepted = 0;
  std::array<int64_t, kMaxDraftTokens> draft_verified_by_position{};
  std::array<int64_t, kMaxDraftTokens> draft_accepted_by_position{};
  int64_t parks = 0;
  int64_t resumes_from_image = 0;
  int64_t resumes_rebuilt = 0;
  int64_t started = 0;  // requests that left the queue for their first step
  int64_t cancels = 0;
  int64_t invariant_breaches = 0;  // engine/invariants.h
  int64_t blocks_evicted = 0;
  // acquired - released is 0 when idle.
  int64_t blocks_acquired = 0;
  int64_t blocks_released = 0;
  int64_t slots_acquired = 0;
  int64_t slots_released = 0;
  int64_t masked_tokens = 0;  // sampled under the mask of a grammar
  int64_t forced_tokens = 0;  // appended because a grammar allowed no other
  int64_t grammar_us = 0;     // masks and forced tokens
  GrammarPoolStats grammars;  // compilation
  int64_t step_us = 0;        // steps from begin to end: what requests have shares of
  int64_t unclaimed_ns = 0;   // part of it that is on the account of no request
  int64_t accounted_us = 0;   // since the engine began: every step that began before has ended
  int64_t host_us = 0;        // planning, sampling and delivery
  int64_t model_us = 0;       // forward passes
  int64_t draft_us = 0;       // drafts and their context

  std::array<StatHistogram, kNumStepKinds> step_seconds{StatHistogram(stat_bounds::kStepSeconds),
                                                        StatHistogram(stat_bounds::kStepSeconds),
                                                        StatHistogram(stat_bounds::kStepSeconds)};
  StatHistogram rows_per_step{stat_bounds::kRows};
  StatHistogram step_prediction_error{stat_bounds::kShare};  // |predicted - measured| / measured
  StatHistogram draft_accept_length{stat_bounds::kTokens};
  StatHistogram draft_confidence_error{stat_bounds::kShare};
  StatHistogram store_load_seconds{stat_bounds::kLoadSeconds};
  StatHistogram replay_gen{stat_bounds::kReplayGen};  // of sequences that began with a hit
  StatHistogram block_lifetime_seconds{stat_bounds::kBlockSeconds};
  StatHistogram block_idle_seconds{stat_bounds::kBlockSeconds};   // before eviction
  StatHistogram block_reuse_seconds{stat_bounds::kBlockSeconds};  // between two uses
};

}  // namespace deepinfer
