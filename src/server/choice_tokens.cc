#include "server/choice_tokens.h"

#include <span>
#include <utility>

#include "base/json_writer.h"

namespace deepinfer {

ChoiceTokens::ChoiceTokens(const Tokenizer& tokenizer, ChoiceTokenSettings settings)
    : settings_(std::move(settings)), pipeline_(tokenizer, settings_.parser) {
  if (settings_.logprobs) pipeline_.TrackTokens();
}

void ChoiceTokens::Take(const TokenEvent& event, std::vector<OutputEvent>* out) {
  counters_ = event.counters;
  TakeIds(event, out);
  if (!pipeline_.stopped() && event.finish == FinishReason::kNone) return;
  pipeline_.Finish(out);
  End(event);
}

void ChoiceTokens::TakeId(int32_t id, std::vector<OutputEvent>* out) {
  const OutputStage before = pipeline_.stage();
  const int64_t reasoning_before = pipeline_.counts().reasoning;
  const bool is_end = id == settings_.eos_token_id;
  // An end token the request told to ignore is still never text.
  if (is_end) {
    pipeline_.SkipToken();
  } else {
    pipeline_.Push({&id, 1}, out);
  }
  if (pipeline_.counts().reasoning > reasoning_before) return;
  const bool closes_reasoning =
      before == OutputStage::kReasoning && id == settings_.parser.think_end_id;
  if (is_end || closes_reasoning || before == OutputStage::kDone) {
    ++num_control_tokens_;
  } else if (before == OutputStage::kTools || pipeline_.stage() == OutputStage::kTools) {
    ++num_tool_tokens_;
  }
}

void ChoiceTokens::AddOutputTo(UsageCounts* usage) const {
  AddOutputCounters(counters_, usage);
  usage->completion_tokens += completion_tokens();
  usage->reasoning_tokens += reasoning_tokens();
  usage->tool_tokens += num_tool_tokens_;
  usage->control_tokens += num_control_tokens_ + num_end_tokens_;
}

void ChoiceTokens::TakeIds(const TokenEvent& event, std::vector<OutputEvent>* out) {
  std::span<const int32_t> ids = event.ids;
  const bool has_end_token =
      event.stop_token_id >= 0 && !ids.empty() && ids.back() == event.stop_token_id;
  if (has_end_token) ids = ids.first(ids.size() - 1);
  size_t num_taken = 0;
  while (num_taken < ids.size() && !pipeline_.stopped()) {
    const int32_t id = ids[num_taken];
    if (settings_.logprobs) {
      ledger_.Add(id,
                  num_taken < event.logprobs.size() ? event.logprobs[num_taken] : TokenLogprobs());
    }
    TakeId(id, out);
    ++num_taken;
  }
  if (has_end_token && !pipeline_.stopped()) {
    num_end_tokens_ = 1;
    ++num_taken;
  }
  if (!settings_.keep_ids) return;
  ids_.insert(ids_.end(), event.ids.begin(),
              event.ids.begin() + static_cast<std::ptrdiff_t>(num_taken));
}

void ChoiceTokens::End(const TokenEvent& event) {
  progress_ = ChoiceProgress::kFinished;
  if (pipeline_.stopped()) {
    if (event.finish == FinishReason::kNone) progress_ = ChoiceProgress::kStopped;
    finish_.reason = "stop";
    finish_.stop_reason_json.clear();
    JsonWriter(&finish_.stop_reason_json).String(pipeline_.stop_string());
    return;
  }
  switch (event.finish) {
    case FinishReason::kStop:
      finish_.reason = pipeline_.num_calls() > 0 ? kToolCallsReason : "stop";
      if (event.stop_token_id >= 0 && event.stop_token_id != settings_.eos_token_id) {
        finish_.stop_reason_json = std::to_string(event.stop_token_id);
      }
      return;
    case FinishReason::kLength:
      finish_.reason = "length";
      return;
    case FinishReason::kDeadline:
      hit_deadline_ = true;
      break;
    default:
      break;
  }
  progress_ = ChoiceProgress::kFailed;
}

void ChoiceTokens::GiveUp() {
  finish_.reason = "insufficient_system_resource";
  progress_ = ChoiceProgress::kFinished;
}

void ChoiceTokens::ReleaseRecords(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    if (!event.tokens.empty()) ledger_.DropBefore(event.tokens.back() + 1);
  }
}

}  // namespace deepinfer
