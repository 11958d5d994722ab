// One step as a piece of work: what to copy, which rows to run, which rows decide a token; and what
// came out. Everything it points to stays alive until the job was processed.
// Thread rule: built and read on the engine thread, run on the step thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "model/step.h"
#include "sched/step_time_model.h"

namespace deepinfer {

struct MemoryCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t size_bytes = 0;
};

struct StepItem {
  Sequence* sequence = nullptr;
  SequenceStep rows;
  bool decides_token = false;  // the last row's logits do
  bool wants_prompt_logprobs = false;
  std::shared_ptr<EdgeSnapshot> snapshot;  // taken after the step

  // Results.
  Status status;
  std::vector<SampledToken> tokens;  // decided by the step; those behind the first are forced
  bool ended_by_grammar = false;     // the last of them ends the output whatever the parameters say
  std::vector<TokenLogprobs> prompt_logprobs;  // of positions rows.start + 1 and on

  int32_t end() const { return rows.start + rows.num_rows; }
};

struct StepJob {
  int64_t number = 0;
  std::vector<MemoryCopy> copies;  // before the rows
  std::vector<Sequence*> copied;   // sequences whose memory the copies read
  std::vector<StepItem> items;
  StepRows rows;
  double predicted_us = 0;
  int64_t plan_us = 0;      // when planning began
  int64_t launched_us = 0;  // and ended

  // Results.
  Status status;
  int64_t begin_us = 0;
  int64_t copied_us = 0;  // when the copies were done
  int64_t model_us = 0;
  int64_t end_us = 0;
  int64_t grammar_us = 0;  // masks and forced tokens
};

}  // namespace deepinfer
