// One request inside the engine: its tokens, cache, sampler and account.
// Thread rule: step thread only, after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "model/model.h"

namespace deepinfer {

// Pages and state slot lent to a sequence by the engine.
struct SequenceCache {
  std::byte* pool = nullptr;
  std::byte* slot = nullptr;
  std::vector<int32_t> block_table;
};

struct Sequence {
  Sequence(EngineRequest r, TokenSink s, const ModelConfig& config, int64_t now_us)
      : request(std::move(r)),
        sink(std::move(s)),
        sampler(request.sampling, request.prompt_ids, config.eos_token_id, config.image_token_id),
        tokens(request.prompt_ids),
        prompt_len(static_cast<int32_t>(request.prompt_ids.size())),
        submitted_us(now_us) {
    counters.prompt_tokens = prompt_len;
  }

  EngineRequest request;
  TokenSink sink;
  Sampler sampler;

  std::vector<int32_t> tokens;  // prompt, then generated
  int32_t prompt_len;
  int32_t num_computed = 0;  // positions that went through the model
  // K0 of model.md §13.1; 0 runs the full decoder.
  int32_t decoder_origin = 0;
  SequenceCache cache;

  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t num_generated = 0;
  RequestCounters counters;
  int64_t submitted_us;
  int64_t started_us = 0;
  int64_t prefilled_us = 0;

  bool in_prefill() const { return num_computed < prompt_len; }
};

}  // namespace deepinfer
