// What an engine is told at its start.
// Thread rule: values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/replay_plan.h"
#include "sched/limits.h"
#include "sched/load_choice.h"
#include "sched/request_class.h"

namespace deepinfer {

class ThreadPool;

enum class DecoderTail : unsigned char {
  kCompact,  // prompt rows before the last window + 12 skip the decoder (model.md §13.1)
  kFull,     // every row runs every layer
};

// Which drafts of a step are verified (dspark.md §5, §6).
enum class VerifyPolicy : unsigned char {
  kScheduled,  // those that give the most tokens per second
  kFixed,      // all
  kThreshold,  // those before the first whose confidence is too low
};

struct SpeculationOptions {
  bool enabled = true;       // where the checkpoint has a draft model
  int32_t draft_tokens = 5;  // made for a request in one step at most; clipped to the model
  VerifyPolicy verify = VerifyPolicy::kScheduled;
  double confidence_threshold = 0.5;  // of kThreshold
  // Divide the raw confidence of draft k = 1, 2, ... (dspark.md §7); empty: all 1.
  std::vector<double> confidence_temperatures;
  // Told of every verification: raw confidences of the verified drafts and how many were accepted.
  // On the engine thread; empty: nobody listens.
  std::function<void(std::span<const float> raw_confidence, int32_t num_accepted)> on_verified;
};

struct EngineOptions {
  int32_t max_model_len = 32768;  // clipped to the model
  int32_t max_num_batched_tokens = 512;
  int32_t max_num_seqs = 16;
  int32_t max_queued_requests = 1024;
  DecoderTail decoder_tail = DecoderTail::kCompact;

  int64_t kv_cache_tokens = 0;  // of the block pool; 0: from memory and max_num_seqs
  bool prefix_cache = true;     // requests share the blocks of equal prefixes
  // How window state behind a prefix hit is rebuilt, and that of a sequence whose image was lost.
  ReplayMode replay = ReplayMode::kBounded;
  ReplayMode resume = ReplayMode::kExact;
  // A request whose hit would get more bounded replays behind it than this replays exactly or
  // computes, and replaces such blocks.
  uint16_t max_replay_gen = kAnyReplayGen;
  int32_t min_hit_tokens = 256;  // shorter hits save less than their replay costs
  // A load from the store may take this long even where computing saves less.
  int64_t min_load_wait_us = kMinLoadWaitUs;
  bool swa_snapshots = true;    // keep encoder windows at block edges for exact hits
  int64_t swa_pool_bytes = -1;  // snapshots and images of parked sequences; -1: from memory

  // Append tokens that a grammar leaves no choice about without sampling them. Off: equal tokens.
  bool jump_forward = true;

  // Post-process a step while the next one computes. Off: one step at a time, equal tokens.
  bool async_scheduling = true;
  // How a step is shared between answers and prompts (sched/limits.h).
  int64_t tpot_target_us = kTpotTargetUs;
  // By class, for requests without a first-token deadline of their own: in their order only, none
  // ends for it. 0: none.
  std::array<int64_t, kRequestClasses.size()> ttft_target_us = {
      kTtftTargetInteractiveUs, kTtftTargetAgentUs, kTtftTargetBatchUs};
  int32_t min_prefill_rows = kMinPrefillRows;
  int32_t prefill_every = kPrefillEvery;
  double prefill_share_max = kPrefillShareMax;
  int32_t max_skips = kMaxSkips;
  // Operations that the machine does a second at most, for statistics; 0: unknown.
  double peak_flops = 0;

  SpeculationOptions speculation;
  // Borrowed, the one of the model's operators: samples large vocabularies on its threads. Null: on
  // the thread that runs the steps.
  ThreadPool* sampling_pool = nullptr;
  // Where learned step times are kept between starts; it belongs to one model on one machine.
  // Empty: nowhere.
  std::string step_time_file;
};

}  // namespace deepinfer
