// The token side of one choice, the same for every route: engine events in, parser events and the
// way the choice ended out.
// Thread rule: one object, one thread. Owner: the choice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/response_common.h"
#include "server/token_ledger.h"
#include "server/usage.h"
#include "text/output_pipeline.h"

namespace deepinfer {

inline constexpr std::string_view kToolCallsReason = "tool_calls";

struct ChoiceTokenSettings {
  int32_t eos_token_id = 1;
  bool logprobs = false;
  bool keep_ids = false;
  ParserSettings parser;
};

class ChoiceTokens {
 public:
  // `tokenizer` is borrowed and outlives this object.
  ChoiceTokens(const Tokenizer& tokenizer, ChoiceTokenSettings settings);

  // Takes an event's ids up to the one that completes a stop string, and the end of the choice if
  // the event or a stop string brings it. Appends parser events. Precondition: running().
  void Take(const TokenEvent& event, std::vector<OutputEvent>* out);

  bool running() const { return progress_ == ChoiceProgress::kRunning; }
  bool succeeded() const {
    return progress_ == ChoiceProgress::kStopped || progress_ == ChoiceProgress::kFinished;
  }
  // The model stopped by itself behind calls.
  bool ended_with_calls() const { return succeeded() && finish_.reason == kToolCallsReason; }
  // For a deadline, kFailed: a stream that has begun calls GiveUp instead of failing.
  ChoiceProgress progress() const { return progress_; }
  bool hit_deadline() const { return hit_deadline_; }
  // Turns a deadline into an ordinary end with reason insufficient_system_resource.
  void GiveUp();

  const ChoiceFinish& finish() const { return finish_; }
  const std::string& stop_string() const { return pipeline_.stop_string(); }  // "" if none matched
  const RequestCounters& counters() const { return counters_; }
  const MalformedCounts& malformed() const { return pipeline_.malformed(); }
  // Committed tokens up to the end: a completed stop string, or the end token, included.
  int64_t completion_tokens() const { return pipeline_.counts().taken + num_end_tokens_; }
  int64_t reasoning_tokens() const { return pipeline_.counts().reasoning; }
  // Adds the output side of this choice: committed tokens by class, and drafts.
  void AddOutputTo(UsageCounts* usage) const;
  const std::vector<int32_t>& ids() const { return ids_; }  // empty unless kept

  // Id and log-probabilities of a token an event names; only with logprobs.
  const TokenRecord& record(int64_t token) const { return ledger_.At(token); }
  // Forgets the records of all tokens up to and including the last one `events` name.
  void ReleaseRecords(const std::vector<OutputEvent>& events);

 private:
  // Takes one id; its class follows from where the parser was before and after.
  void TakeId(int32_t id, std::vector<OutputEvent>* out);
  void TakeIds(const TokenEvent& event, std::vector<OutputEvent>* out);
  void End(const TokenEvent& event);

  ChoiceTokenSettings settings_;
  OutputPipeline pipeline_;
  TokenLedger ledger_;
  ChoiceFinish finish_;
  RequestCounters counters_;
  ChoiceProgress progress_ = ChoiceProgress::kRunning;
  std::vector<int32_t> ids_;
  int64_t num_end_tokens_ = 0;
  int64_t num_tool_tokens_ = 0;
  int64_t num_control_tokens_ = 0;  // end tokens that end nothing, and the marker behind reasoning
  bool hit_deadline_ = false;
};

}  // namespace deepinfer
