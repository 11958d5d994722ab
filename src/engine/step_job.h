// One step as a piece of work: what to copy, which rows to run, which rows decide a token; and what
// came out. Everything it points to stays alive until the job was processed.
// Thread rule: built and read on the engine thread, run on the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/distribution.h"
#include "engine/sequence.h"
#include "model/step.h"
#include "sched/draft_policy.h"
#include "sched/step_time_model.h"
#include "sched/verify_length.h"

namespace deepinfer {

struct MemoryCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t size_bytes = 0;
};

// A branch that gets a copy of the memory of its leader.
struct Fork {
  Sequence* leader = nullptr;
  Sequence* branch = nullptr;
};

// Drafts of one item (dspark.md §3).
struct DraftBlock {
  std::vector<int32_t> ids;
  std::vector<Survivors> q;  // what each was drawn from; of requests that verify by rejection
  std::vector<float> raw_confidence;  // logits, before calibration
  std::vector<double> confidence;     // chance that each is accepted once those before it are
  std::vector<double> acceptance;     // the same, with what the request showed so far
};

struct StepItem {
  Sequence* sequence = nullptr;
  // Of a decode item without start and number of rows: they follow from the tokens decided before,
  // which the step itself finds out.
  SequenceStep rows;
  bool is_decode = false;
  int32_t max_drafts = 0;      // rows of a decode item behind the first, at most
  bool may_draft = false;      // they may be of drafts
  double acceptance_rate = 0;  // of the drafts of the request so far
  DraftTry draft_try;
  int32_t launched_rows = 0;   // what it added to Sequence::launched
  bool decides_token = false;  // the logits of the last rows do
  bool wants_prompt_logprobs = false;
  int64_t snapshot_bytes = 0;  // of window state to keep if it reaches a block edge; 0: none

  // Results.
  Status status;
  std::span<float> logits;              // f32 of the rows that yield any, while the step runs
  std::span<const float> logit_maxima;  // StepOutput::logit_maxima of these rows
  bool ran = true;                      // false: the sequence had ended
  int32_t num_known = 1;      // leading rows of a decode item whose tokens were decided before
  int32_t num_committed = 0;  // leading rows of a decode item that stay
  std::vector<SampledToken> tokens;
  int32_t num_forced = 0;         // of these, the last ones, which a grammar left no choice about
  bool ended_by_grammar = false;  // the last of them ends the output whatever the parameters say
  DraftBlock drafts;
  int32_t num_verified = 0;  // leading drafts
  int32_t num_accepted = 0;
  std::shared_ptr<EdgeSnapshot> snapshot;
  std::vector<TokenLogprobs> prompt_logprobs;  // of positions rows.start + 1 and on

  int32_t end() const { return rows.start + rows.num_rows; }
};

struct StepJob {
  int64_t number = 0;
  std::vector<MemoryCopy> copies;  // before the rows
  std::vector<Fork> forks;         // what the copies are for
  std::vector<StepItem> items;
  VerifyBudget verify;        // of all items together
  bool keeps_context = true;  // hidden rows are kept for later drafts
  StepRows rows;              // of prefill; those of decode items are a result
  ExpectedStep expected;      // by what is known of drafts
  double predicted_us = 0;
  int64_t plan_us = 0;      // when planning began
  int64_t launched_us = 0;  // and ended

  // Results.
  Status status;
  int64_t begin_us = 0;
  int64_t copied_us = 0;   // when the copies were done
  int64_t draft_us = 0;    // time of the draft pass
  int64_t context_us = 0;  // time to keep up the draft model's context
  int64_t model_us = 0;
  std::vector<int32_t> expert_rows;  // StepOutput::expert_rows
  int64_t end_us = 0;
  int64_t grammar_us = 0;  // masks and forced tokens
};

}  // namespace deepinfer
