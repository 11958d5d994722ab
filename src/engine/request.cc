#include "engine/request.h"

#include "base/result.h"

namespace deepinfer {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kQueueTimeout:
      return "queue_timeout";
    case FinishReason::kGrammarError:
      return "grammar_error";
    case FinishReason::kError:
      return "error";
    case FinishReason::kHandedOff:
      return "handed_off";
    case FinishReason::kQuarantined:
      return "quarantined";
  }
  return "error";
}

namespace {

Status OutOfRange(std::string_view field, std::string_view range) {
  return InvalidRequest(std::string(field) + " must be " + std::string(range));
}

// Written so that NaN fails.
bool Within(float x, float lo, float hi) { return x >= lo && x <= hi; }

Status CheckIds(std::string_view field, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidRequest(std::string(field) + " holds " + std::to_string(id) +
                            ", token ids are 0.." + std::to_string(vocab_size - 1));
    }
  }
  return OkStatus();
}

Status ValidateSampling(const SamplingParams& s, int32_t vocab_size) {
  if (!Within(s.temperature, 0.0f, 2.0f)) return OutOfRange("temperature", "in [0, 2]");
  if (!Within(s.top_p, 0.0f, 1.0f) || s.top_p == 0.0f) return OutOfRange("top_p", "in (0, 1]");
  if (!Within(s.min_p, 0.0f, 1.0f)) return OutOfRange("min_p", "in [0, 1]");
  if (s.top_k < 0) return OutOfRange("top_k", "0 (off) or positive");
  if (!Within(s.repetition_penalty, 0.0f, 2.0f) || s.repetition_penalty == 0.0f) {
    return OutOfRange("repetition_penalty", "in (0, 2]");
  }
  if (!Within(s.frequency_penalty, -2.0f, 2.0f)) {
    return OutOfRange("frequency_penalty", "in [-2, 2]");
  }
  if (!Within(s.presence_penalty, -2.0f, 2.0f)) {
    return OutOfRange("presence_penalty", "in [-2, 2]");
  }
  if (s.max_tokens < 1) return OutOfRange("max_tokens", "at least 1");
  if (s.min_tokens < 0) return OutOfRange("min_tokens", "at least 0");
  if (s.num_tokens_without_end < 0) return OutOfRange("num_tokens_without_end", "at least 0");
  if (s.num_top_logprobs < -1 || s.num_top_logprobs > kMaxTopLogprobs) {
    return OutOfRange("top_logprobs", "at most " + std::to_string(kMaxTopLogprobs));
  }
  for (const auto& [id, bias] : s.logit_bias) {
    if (id < 0 || id >= vocab_size || !Within(bias, -100.0f, 100.0f)) {
      return OutOfRange("logit_bias", "values in [-100, 100] for ids of the vocabulary");
    }
  }
  DI_RETURN_IF_ERROR(CheckIds("stop_token_ids", s.stop_token_ids, vocab_size));
  for (const auto& sequence : s.banned_sequences) {
    if (sequence.empty()) return InvalidRequest("banned_sequences holds an empty sequence");
    DI_RETURN_IF_ERROR(CheckIds("banned_sequences", sequence, vocab_size));
  }
  DI_RETURN_IF_ERROR(CheckIds("allowed_ids", s.allowed_ids, vocab_size));
  return CheckIds("banned_ids", s.banned_ids, vocab_size);
}

}  // namespace

Status ValidateOrigin(const SequenceOrigin& origin, size_t prompt_tokens) {
  const auto inside = [&](int32_t position) {
    return position >= 0 && static_cast<size_t>(position) <= prompt_tokens;
  };
  if (inside(origin.first_row) && inside(origin.window_floor) && origin.replay_gen >= 0 &&
      origin.replay_gen <= UINT16_MAX) {
    return OkStatus();
  }
  return InvalidRequest("the origin of a resumed sequence is out of range");
}

Status ValidateRequest(const EngineRequest& request, int32_t vocab_size, int32_t max_model_len) {
  if (request.prompt_ids.empty()) return InvalidRequest("the prompt has no tokens");
  if (static_cast<int64_t>(request.prompt_ids.size()) >= max_model_len) {
    return InvalidRequest("the prompt has " + std::to_string(request.prompt_ids.size()) +
                          " tokens, the context is " + std::to_string(max_model_len) +
                          " and must leave room for at least one more");
  }
  DI_RETURN_IF_ERROR(CheckIds("prompt", request.prompt_ids, vocab_size));
  if (request.state_at.size() > kMaxStateAt)
    return OutOfRange("state_at", "at most " + std::to_string(kMaxStateAt) + " places");
  for (int32_t place : request.state_at) {
    if (place < 1 || static_cast<size_t>(place) > request.prompt_ids.size()) {
      return OutOfRange("state_at", "in 1..prompt tokens");
    }
  }
  DI_RETURN_IF_ERROR(CheckIds("forced_ids", request.forced_ids, vocab_size));
  if (request.grammar != nullptr) {
    const GrammarTrigger& trigger = request.grammar->trigger;
    DI_RETURN_IF_ERROR(CheckIds("the trigger of the grammar", trigger.token_ids, vocab_size));
    DI_RETURN_IF_ERROR(CheckIds("the bans of the grammar", trigger.banned_ids, vocab_size));
  }
  if (request.resume) {
    const std::vector<int32_t>& ids = request.resume->ids;
    const bool begins = ids.empty() && !request.resume->image.empty();
    if ((ids.empty() && !begins) ||
        static_cast<int64_t>(ids.size()) >= request.sampling.max_tokens ||
        static_cast<int64_t>(request.prompt_ids.size() + ids.size()) >= max_model_len) {
      return InvalidRequest("a resumed request has " + std::to_string(ids.size()) +
                            " tokens, which leaves none to generate");
    }
    DI_RETURN_IF_ERROR(CheckIds("resume", ids, vocab_size));
  }
  for (const int32_t length : request.forced_accepts) {
    if (length < 0) return InvalidRequest("forced_accepts must not be negative");
  }
  return ValidateSampling(request.sampling, vocab_size);
}

}  // namespace deepinfer
