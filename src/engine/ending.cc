#include "engine/ending.h"

#include <algorithm>

namespace deepinfer {

FinishReason EndAfterToken(const EngineRequest& request, const EndRule& rule, int32_t num_generated,
                           int32_t id, int32_t* stop_token_id) {
  const SamplingParams& p = request.sampling;
  const bool is_end = id == rule.end_id && !p.ignore_eos;
  const bool is_stop =
      std::find(p.stop_token_ids.begin(), p.stop_token_ids.end(), id) != p.stop_token_ids.end();
  if ((is_end || is_stop) && num_generated > p.min_tokens) {
    *stop_token_id = id;
    return FinishReason::kStop;
  }
  const int64_t length = static_cast<int64_t>(request.prompt_ids.size()) + num_generated;
  const bool is_full = num_generated >= p.max_tokens || length >= rule.max_model_len;
  return is_full ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace deepinfer
