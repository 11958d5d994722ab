#include "server/chat_choice.h"

#include <span>
#include <utility>

#include "base/json_writer.h"
#include "server/logprobs.h"

namespace deepinfer {
namespace {

// Clients refuse more than 65,536 fragments of one call (api.md §20). The first half goes out at
// once; the rest in pieces so large that the longest possible answer stays below the other half.
constexpr int64_t kMaxEagerFragments = 32768;
constexpr size_t kLateFragmentBytes = 4096;

}  // namespace

ChatChoice::ChatChoice(const Tokenizer& tokenizer, const ChatFormat& format,
                       ChatChoiceSettings settings)
    : tokenizer_(tokenizer),
      format_(format),
      settings_(std::move(settings)),
      tokens_(tokenizer, {.eos_token_id = settings_.eos_token_id,
                          .logprobs = settings_.logprobs,
                          .keep_ids = settings_.return_token_ids || settings_.on_tool_turn,
                          .parser = settings_.parser}) {}

ChoiceProgress ChatChoice::Take(const TokenEvent& event) {
  if (!tokens_.running()) return tokens_.progress();
  std::vector<OutputEvent> events;
  tokens_.Take(event, &events);
  const bool has_begun = !event.ids.empty() || tokens_.succeeded();
  if (has_begun) Absorb(std::exchange(settings_.echo, {}));
  Absorb(std::move(events));
  if (tokens_.hit_deadline() && wrote_role_) tokens_.GiveUp();
  started_ = started_ || has_begun;
  if (tokens_.ended_with_calls() && settings_.on_tool_turn) {
    settings_.on_tool_turn(tokens_.ids(), message_.CallIds());
  }
  return tokens_.progress();
}

void ChatChoice::Absorb(std::vector<OutputEvent> events) {
  std::vector<std::string> logprobs;
  for (const OutputEvent& event : events) {
    message_.Apply(event, NewToolCallId);
    logprobs.push_back(LogprobsOf(event));
    message_.AddLogprobs(event.kind, logprobs.back());
  }
  tokens_.ReleaseRecords(events);
  if (!settings_.stream) return;
  for (size_t i = 0; i < events.size(); ++i) {
    steps_.push_back({std::move(events[i]), std::move(logprobs[i])});
  }
}

std::string ChatChoice::LogprobsOf(const OutputEvent& event) {
  std::string out;
  JsonWriter json(&out);
  for (int64_t token : event.tokens) {
    const TokenRecord& record = tokens_.record(token);
    WriteChatLogprob(tokenizer_, record.id, record.logprobs, &num_nan_logprobs_, &json);
  }
  return out;
}

bool ChatChoice::WriteChunks(const ChunkUsage& usage, std::string_view prompt_token_ids_json,
                             std::vector<std::string>* chunks) {
  if (!started_) return false;
  if (!wrote_role_) {
    wrote_role_ = true;
    ChatChunk role{.delta = ChatDelta::kRole};
    role.prompt_token_ids_json = prompt_token_ids_json;
    Write(role, usage, chunks);
  }
  for (const Step& step : std::exchange(steps_, {})) {
    const OutputEvent& event = step.event;
    if (event.kind != OutputEventKind::kArguments) FlushArguments(usage, chunks);
    switch (event.kind) {
      case OutputEventKind::kReasoning:
      case OutputEventKind::kContent:
        Write({.delta = event.kind == OutputEventKind::kContent ? ChatDelta::kContent
                                                                : ChatDelta::kReasoning,
               .text = event.text,
               .logprobs = step.logprobs},
              usage, chunks);
        break;
      case OutputEventKind::kCallStart:
        open_call_ = event.call_index;
        num_fragments_ = 0;
        Write({.delta = ChatDelta::kCallStart,
               .text = event.text,
               .call_index = open_call_,
               .call_id = message_.calls[static_cast<size_t>(open_call_)].id},
              usage, chunks);
        break;
      case OutputEventKind::kArguments:
        WriteArguments(event, usage, chunks);
        break;
      case OutputEventKind::kCallEnd:
      case OutputEventKind::kStopMatched:
        break;
    }
  }
  if (!succeeded() || wrote_finish_) return true;
  wrote_finish_ = true;
  FlushArguments(usage, chunks);
  Write({.delta = ChatDelta::kFinish, .finish = &tokens_.finish()}, usage, chunks);
  return true;
}

void ChatChoice::WriteArguments(const OutputEvent& event, const ChunkUsage& usage,
                                std::vector<std::string>* chunks) {
  held_arguments_ += event.text;
  if (num_fragments_ < kMaxEagerFragments || held_arguments_.size() >= kLateFragmentBytes) {
    FlushArguments(usage, chunks);
  }
}

void ChatChoice::FlushArguments(const ChunkUsage& usage, std::vector<std::string>* chunks) {
  if (held_arguments_.empty()) return;
  ++num_fragments_;
  Write({.delta = ChatDelta::kArguments, .text = held_arguments_, .call_index = open_call_}, usage,
        chunks);
  held_arguments_.clear();
}

void ChatChoice::Write(ChatChunk chunk, const ChunkUsage& usage, std::vector<std::string>* chunks) {
  chunk.choice = settings_.index;
  chunk.usage_json = chunk.delta == ChatDelta::kFinish ? usage.on_finish : usage.on_chunk;
  std::string ids_json;
  if (settings_.return_token_ids) {
    ids_json = IdsJson(std::span(tokens_.ids()).subspan(num_written_ids_));
    num_written_ids_ = tokens_.ids().size();
    chunk.token_ids_json = ids_json;
  }
  chunks->push_back(WriteChatChunk(format_, chunk));
}

}  // namespace deepinfer
