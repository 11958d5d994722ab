#include "server/parse_tool.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "server/chat_format.h"
#include "server/json_writer.h"
#include "server/logprobs.h"
#include "server/parse_recording.h"
#include "server/token_ledger.h"
#include "server/usage.h"
#include "text/output_pipeline.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

ChatFormat RecordedFormat(const Recording& recording) {
  ChatFormat format;
  format.id.append("resp-1");
  format.model.push_back('m');
  if (recording.has_ready) format.system_fingerprint.emplace("fp");
  format.thinking = recording.thinking;
  format.starts_in_reasoning = recording.parser.start == ParserStart::kReasoningStart ||
                               recording.parser.start == ParserStart::kReasoningContinuation;
  format.reference = true;
  return format;
}

std::string RecordedCallId(int32_t index) {
  std::string id = index < 10 ? "call_0" : "call_";
  id += std::to_string(index);
  return id += "_*";
}

// Runs a recording through the parser and writes what a client would have seen.
class Replay {
 public:
  Replay(const Tokenizer& tokenizer, Recording recording)
      : tokenizer_(tokenizer),
        recording_(std::move(recording)),
        usage_(recording_.usage),
        format_(RecordedFormat(recording_)),
        pipeline_(tokenizer, recording_.parser),
        events_(&events_json_) {
    pipeline_.TrackTokens();
  }

  std::string Run();

 private:
  void Push(const RecordedChunk& chunk);
  void PushIds(const RecordedChunk& chunk);
  bool EndsInsideCodePoint() const;
  void Flush(std::vector<OutputEvent> events);
  std::string LogprobsOf(const OutputEvent& event);
  void WriteChunk(ChatChunk chunk);
  void End(std::string_view engine_reason);
  std::string UsageJson();
  std::string Body();

  const Tokenizer& tokenizer_;
  const Recording recording_;
  UsageCounts usage_;
  ChatFormat format_;
  OutputPipeline pipeline_;
  TokenLedger ledger_;
  ChatMessage message_;
  ChoiceFinish finish_;
  std::string events_json_;
  JsonWriter events_;
  std::vector<int32_t> waiting_ids_;  // end inside a code point
  std::vector<TokenLogprobs> waiting_logprobs_;
  int64_t event_index_ = -1;
  int64_t num_nan_ = 0;
  bool wrote_role_ = false;
  bool saw_ids_ = false;
  bool saw_logprobs_ = false;
};

std::string Replay::Run() {
  events_.BeginArray();
  if (recording_.has_ready) WriteChunk({.delta = ChatDelta::kRole});
  for (const RecordedChunk& chunk : recording_.chunks) {
    ++event_index_;
    Push(chunk);
    if (!finish_.reason.empty()) break;
  }
  if (finish_.reason.empty()) {
    // Without a finish notice the end of input ends the answer, one step later.
    event_index_ = static_cast<int64_t>(recording_.chunks.size()) + (recording_.finish ? 0 : 1);
    std::vector<OutputEvent> events;
    pipeline_.Finish(&events);
    Flush(std::move(events));
    if (finish_.reason.empty()) End(recording_.finish.value_or("stop"));
  }
  events_.EndArray();
  std::string out = "{\"events\":" + events_json_;
  out += ",\"final\":" + Body();
  return out += '}';
}

void Replay::Push(const RecordedChunk& chunk) {
  if (!chunk.ids.empty()) {
    PushIds(chunk);
    return;
  }
  usage_.completion_tokens += chunk.num_tokens;
  std::vector<OutputEvent> events;
  pipeline_.PushText(chunk.text, &events);
  Flush(std::move(events));
}

// As the reference does, a chunk that ends inside a code point waits for the next one whole; what
// waits at the end was never delivered and does not count.
void Replay::PushIds(const RecordedChunk& chunk) {
  saw_ids_ = true;
  saw_logprobs_ = saw_logprobs_ || !chunk.logprobs.empty();
  waiting_ids_.insert(waiting_ids_.end(), chunk.ids.begin(), chunk.ids.end());
  waiting_logprobs_.insert(waiting_logprobs_.end(), chunk.logprobs.begin(), chunk.logprobs.end());
  waiting_logprobs_.resize(waiting_ids_.size());
  if (EndsInsideCodePoint()) return;
  const std::vector<int32_t> ids = std::exchange(waiting_ids_, {});
  std::vector<TokenLogprobs> logprobs = std::exchange(waiting_logprobs_, {});
  usage_.completion_tokens += static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ledger_.Add(ids[i], std::move(logprobs[i]));
  std::vector<OutputEvent> events;
  pipeline_.Push(ids, &events);
  Flush(std::move(events));
}

bool Replay::EndsInsideCodePoint() const {
  std::string bytes;
  for (int32_t id : waiting_ids_) bytes += tokenizer_.TokenBytes(id);
  std::string complete;
  DrainCompleteUtf8(&bytes, &complete);
  return !bytes.empty();
}

void Replay::Flush(std::vector<OutputEvent> events) {
  for (const OutputEvent& event : events) {
    message_.Apply(event, RecordedCallId);
    const std::string logprobs = LogprobsOf(event);
    message_.AddLogprobs(event.kind, logprobs);
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        WriteChunk({.delta = ChatDelta::kReasoning, .text = event.text, .logprobs = logprobs});
        break;
      case OutputEventKind::kContent:
        WriteChunk({.delta = ChatDelta::kContent, .text = event.text, .logprobs = logprobs});
        break;
      case OutputEventKind::kCallStart:
        WriteChunk({.delta = ChatDelta::kCallStart,
                    .text = event.text,
                    .call_index = event.call_index,
                    .call_id = message_.calls.back().id});
        break;
      case OutputEventKind::kArguments:
        WriteChunk(
            {.delta = ChatDelta::kArguments, .text = event.text, .call_index = event.call_index});
        break;
      case OutputEventKind::kCallEnd:
        break;
      case OutputEventKind::kStopMatched:
        End("stop");
        break;
    }
  }
}

std::string Replay::LogprobsOf(const OutputEvent& event) {
  std::string out;
  if (!saw_logprobs_) return out;
  JsonWriter json(&out);
  for (int64_t token : event.tokens) {
    const TokenRecord& record = ledger_.At(token);
    WriteChatLogprob(tokenizer_, record.id, record.logprobs, &num_nan_, &json);
  }
  return out;
}

void Replay::WriteChunk(ChatChunk chunk) {
  if (!wrote_role_) {
    wrote_role_ = true;
    if (chunk.delta != ChatDelta::kRole) WriteChunk({.delta = ChatDelta::kRole});
  }
  const std::string usage = chunk.delta == ChatDelta::kFinish  ? UsageJson()
                            : recording_.usage_field_in_chunks ? "null"
                                                               : "";
  chunk.usage_json = usage;
  events_.BeginArray().Int(event_index_).Null().Raw(WriteChatChunk(format_, chunk)).EndArray();
}

void Replay::End(std::string_view engine_reason) {
  const bool called = engine_reason == "stop" && pipeline_.num_calls() > 0;
  finish_.reason = called ? "tool_calls" : engine_reason;
  WriteChunk({.delta = ChatDelta::kFinish, .finish = &finish_});
}

std::string Replay::UsageJson() {
  // The reference counts reasoning by encoding its text again, and only when it was given ids.
  const bool counts_reasoning = saw_ids_ && format_.starts_in_reasoning;
  if (counts_reasoning) {
    std::vector<int32_t> ids;
    tokenizer_.EncodeWithSpecials(message_.reasoning, &ids);
    usage_.reasoning_tokens = static_cast<int64_t>(ids.size());
  }
  std::string out;
  JsonWriter json(&out);
  WriteReferenceUsage(usage_, counts_reasoning, &json);
  return out;
}

std::string Replay::Body() {
  ChatAnswer body;
  body.choices.push_back({.index = 0,
                          .message = &message_,
                          .finish = &finish_,
                          .logprobs = saw_logprobs_,
                          .token_ids_json = {}});
  const std::string usage = UsageJson();
  body.usage_json = usage;
  return WriteChatBody(format_, body);
}

}  // namespace

Result<std::string> RunParse(const Tokenizer& tokenizer, std::string_view dialect,
                             std::string_view line) {
  if (dialect != "chat") return InvalidRequest("unknown dialect: " + std::string(dialect));
  DI_ASSIGN_OR_RETURN(Recording recording, ReadRecording(line));
  DI_ASSIGN_OR_RETURN(const SpecialTokens special, SpecialTokens::Resolve(tokenizer));
  recording.parser.think_end_id = special.think_end;
  recording.parser.dsml_id = special.dsml;
  return Replay(tokenizer, std::move(recording)).Run();
}

}  // namespace deepinfer
