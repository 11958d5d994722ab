#include "server/parse_tool.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "server/answer_writer.h"
#include "server/chat_format.h"
#include "server/logprobs.h"
#include "server/messages_writer.h"
#include "server/parse_recording.h"
#include "server/responses_writer.h"
#include "server/token_ledger.h"
#include "server/usage.h"
#include "text/output_pipeline.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

bool StartsInReasoning(const Recording& recording) {
  return recording.parser.start == ParserStart::kReasoningStart ||
         recording.parser.start == ParserStart::kReasoningContinuation;
}

// The reference counts reasoning by encoding its text again, and only when it was given ids.
bool CountsReasoning(const Recording& recording) {
  return recording.has_ids && StartsInReasoning(recording);
}

std::string RecordedCallId(int32_t index) {
  std::string id = index < 10 ? "call_0" : "call_";
  id += std::to_string(index);
  return id += "_*";
}

// Chat answers in the form of the official conversion rules.
class ChatReferenceWriter final : public AnswerWriter {
 public:
  explicit ChatReferenceWriter(const Recording& recording)
      : usage_in_chunks_(recording.usage_field_in_chunks ? "null" : ""),
        has_logprobs_(recording.has_logprobs),
        counts_reasoning_(CountsReasoning(recording)) {
    format_.id.append("resp-1");
    format_.model.push_back('m');
    if (recording.has_ready) format_.system_fingerprint.emplace("fp");
    format_.thinking = recording.thinking;
    format_.starts_in_reasoning = StartsInReasoning(recording);
    format_.reference = true;
  }

  void Start(const UsageCounts& /*usage*/, NamedEvents* events) override {
    Write({.delta = ChatDelta::kRole}, usage_in_chunks_, events);
  }
  void Take(const OutputEvent& event, std::string_view logprobs, NamedEvents* events) override;
  void End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) override;
  void Abort(const ApiError& /*error*/, std::string_view /*request_id*/,
             NamedEvents* /*events*/) override {}
  std::string Body() const override;
  std::vector<std::string> CallIds() const override { return message_.CallIds(); }

 private:
  void Write(ChatChunk chunk, std::string_view usage_json, NamedEvents* events) const {
    chunk.usage_json = usage_json;
    events->push_back({{}, WriteChatChunk(format_, chunk)});
  }

  ChatFormat format_;
  const std::string_view usage_in_chunks_;
  const bool has_logprobs_;
  const bool counts_reasoning_;
  ChatMessage message_;
  ChoiceFinish finish_;
  std::string usage_json_;
};

void ChatReferenceWriter::Take(const OutputEvent& event, std::string_view logprobs,
                               NamedEvents* events) {
  message_.Apply(event, RecordedCallId);
  message_.AddLogprobs(event.kind, logprobs);
  ChatChunk chunk{.text = event.text};
  switch (event.kind) {
    case OutputEventKind::kReasoning:
    case OutputEventKind::kContent:
      chunk.delta =
          event.kind == OutputEventKind::kContent ? ChatDelta::kContent : ChatDelta::kReasoning;
      chunk.logprobs = logprobs;
      break;
    case OutputEventKind::kCallStart:
      chunk.delta = ChatDelta::kCallStart;
      chunk.call_index = event.call_index;
      chunk.call_id = message_.calls.back().id;
      break;
    case OutputEventKind::kArguments:
      chunk.delta = ChatDelta::kArguments;
      chunk.call_index = event.call_index;
      break;
    case OutputEventKind::kCallEnd:
    case OutputEventKind::kStopMatched:
      return;
  }
  Write(chunk, usage_in_chunks_, events);
}

void ChatReferenceWriter::End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) {
  finish_.reason = end.reason;
  JsonWriter json(&usage_json_);
  WriteReferenceUsage(usage, counts_reasoning_, &json);
  Write({.delta = ChatDelta::kFinish, .finish = &finish_}, usage_json_, events);
}

std::string ChatReferenceWriter::Body() const {
  ChatAnswer body;
  body.choices.push_back({.index = 0,
                          .message = &message_,
                          .finish = &finish_,
                          .logprobs = has_logprobs_,
                          .token_ids_json = {}});
  body.usage_json = usage_json_;
  return WriteChatBody(format_, body);
}

std::unique_ptr<AnswerWriter> MakeWriter(std::string_view dialect, const Recording& recording) {
  if (dialect == "chat") return std::make_unique<ChatReferenceWriter>(recording);
  if (dialect == "responses") {
    ResponsesFormat format;
    format.id.append("resp-1");
    format.model.push_back('m');
    format.echo_json = recording.echo_json;
    format.tools = recording.tools;
    format.reference = true;
    return std::make_unique<ResponsesWriter>(std::move(format), RecordedCallId,
                                             [] { return int64_t{0}; });
  }
  MessagesFormat format;
  format.id.append("resp-1");
  format.model.push_back('m');
  format.starts_in_reasoning = StartsInReasoning(recording);
  format.reference = true;
  return std::make_unique<MessagesWriter>(std::move(format), RecordedCallId);
}

// Runs a recording through the parser and a writer: what a client would have seen.
class Replay {
 public:
  Replay(const Tokenizer& tokenizer, Recording recording, std::unique_ptr<AnswerWriter> writer)
      : tokenizer_(tokenizer),
        recording_(std::move(recording)),
        usage_(recording_.usage),
        writer_(std::move(writer)),
        pipeline_(tokenizer, recording_.parser),
        events_(&events_json_) {
    pipeline_.TrackTokens();
  }

  std::string Run();

 private:
  void Push(const RecordedChunk& chunk);
  void PushIds(const RecordedChunk& chunk);
  bool EndsInsideCodePoint() const;
  void Flush(const std::vector<OutputEvent>& events);
  std::string LogprobsOf(const OutputEvent& event);
  void Start();
  void End(std::string_view engine_reason, std::optional<std::string> stop_string);
  void CountReasoning();
  void Note(const NamedEvents& events);

  const Tokenizer& tokenizer_;
  const Recording recording_;
  UsageCounts usage_;
  const std::unique_ptr<AnswerWriter> writer_;
  OutputPipeline pipeline_;
  TokenLedger ledger_;
  std::string reasoning_;
  std::string events_json_;
  JsonWriter events_;
  std::vector<int32_t> waiting_ids_;  // end inside a code point
  std::vector<TokenLogprobs> waiting_logprobs_;
  int64_t event_index_ = -1;
  int64_t num_nan_ = 0;
  bool started_ = false;
  bool ended_ = false;
};

std::string Replay::Run() {
  events_.BeginArray();
  if (recording_.has_ready) Start();
  for (const RecordedChunk& chunk : recording_.chunks) {
    ++event_index_;
    Push(chunk);
    if (ended_) break;
  }
  if (!ended_) {
    // Without a finish notice the end of input ends the answer, one step later.
    event_index_ = static_cast<int64_t>(recording_.chunks.size()) + (recording_.finish ? 0 : 1);
    std::vector<OutputEvent> events;
    pipeline_.Finish(&events);
    Flush(events);
    if (!ended_) End(recording_.finish.value_or("stop"), std::nullopt);
  }
  events_.EndArray();
  std::string out = "{\"events\":" + events_json_;
  out += ",\"final\":" + writer_->Body();
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
  Flush(events);
}

// As the reference does, a chunk that ends inside a code point waits for the next one whole; what
// waits at the end was never delivered and does not count.
void Replay::PushIds(const RecordedChunk& chunk) {
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
  Flush(events);
}

bool Replay::EndsInsideCodePoint() const {
  std::string bytes;
  for (int32_t id : waiting_ids_) bytes += tokenizer_.TokenBytes(id);
  std::string complete;
  DrainCompleteUtf8(&bytes, &complete);
  return !bytes.empty();
}

void Replay::Flush(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEventKind::kStopMatched) {
      End("stop", event.text);
      return;
    }
    if (event.kind == OutputEventKind::kReasoning) reasoning_ += event.text;
    Start();
    NamedEvents named;
    writer_->Take(event, LogprobsOf(event), &named);
    Note(named);
  }
}

std::string Replay::LogprobsOf(const OutputEvent& event) {
  std::string out;
  if (!recording_.has_logprobs) return out;
  JsonWriter json(&out);
  for (int64_t token : event.tokens) {
    const TokenRecord& record = ledger_.At(token);
    WriteChatLogprob(tokenizer_, record.id, record.logprobs, &num_nan_, &json);
  }
  return out;
}

void Replay::Start() {
  if (std::exchange(started_, true)) return;
  NamedEvents named;
  writer_->Start(recording_.usage, &named);
  Note(named);
}

void Replay::End(std::string_view engine_reason, std::optional<std::string> stop_string) {
  Start();
  ended_ = true;
  AnswerEnd end;
  // An answer whose end was never told is not known to have stopped for its calls.
  const bool calls = engine_reason == "stop" && recording_.finish && pipeline_.num_calls() > 0;
  end.reason = calls ? "tool_calls" : engine_reason;
  end.stop_string = std::move(stop_string);
  CountReasoning();
  NamedEvents named;
  writer_->End(end, usage_, &named);
  Note(named);
}

void Replay::CountReasoning() {
  if (!CountsReasoning(recording_)) return;
  std::vector<int32_t> ids;
  tokenizer_.EncodeWithSpecials(reasoning_, &ids);
  usage_.reasoning_tokens = static_cast<int64_t>(ids.size());
}

void Replay::Note(const NamedEvents& events) {
  for (const NamedEvent& event : events) {
    events_.BeginArray().Int(event_index_);
    if (event.name.empty()) {
      events_.Null();
    } else {
      events_.String(event.name);
    }
    events_.Raw(event.json).EndArray();
  }
}

}  // namespace

Result<std::string> RunParse(const Tokenizer& tokenizer, std::string_view dialect,
                             std::string_view line) {
  if (dialect != "chat" && dialect != "messages" && dialect != "responses") {
    return InvalidRequest("unknown dialect: " + std::string(dialect));
  }
  DI_ASSIGN_OR_RETURN(Recording recording, ReadRecording(dialect, line));
  DI_ASSIGN_OR_RETURN(const SpecialTokens special, SpecialTokens::Resolve(tokenizer));
  recording.parser.think_end_id = special.think_end;
  recording.parser.dsml_id = special.dsml;
  std::unique_ptr<AnswerWriter> writer = MakeWriter(dialect, recording);
  return Replay(tokenizer, std::move(recording), std::move(writer)).Run();
}

}  // namespace deepinfer
