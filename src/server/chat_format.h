// JSON forms of the chat answer: chunks of a stream and the one body (api.md §4, §5), and the
// slightly different ones of the official conversion rules, which the reference vectors hold.
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/response_common.h"
#include "text/output_event.h"

namespace deepinfer {

class JsonWriter;

enum class ReasoningField : unsigned char { kReasoningContent, kReasoning, kBoth };

// What all chunks and bodies of one answer share.
struct ChatFormat {
  std::string id;
  std::string model;
  std::optional<std::string> system_fingerprint;  // null in the JSON when absent
  std::string service_tier;                       // "": field left out
  int64_t created_s = 0;
  bool thinking = false;             // deltas carry reasoning and content side by side
  bool starts_in_reasoning = false;  // the answer begins with reasoning
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool reference = false;  // the forms of the official conversion rules
};

struct ChatToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

// One choice's answer so far.
struct ChatMessage {
  std::string content;
  std::string reasoning;
  std::vector<ChatToolCall> calls;
  std::string content_logprobs;    // JSON objects joined by commas
  std::string reasoning_logprobs;  // same

  // Adds one event. `make_call_id(index)` names a call that starts.
  void Apply(const OutputEvent& event, const std::function<std::string(int32_t)>& make_call_id);
  // Adds the log-probabilities of a text event, JSON objects joined by commas or "".
  void AddLogprobs(OutputEventKind kind, std::string_view entries);
  // In their order.
  std::vector<std::string> CallIds() const;
};

// "call_07_" and 24 random letters and digits.
std::string NewToolCallId(int32_t index);

// Everything of a chunk that varies. Exactly one of the delta forms.
enum class ChatDelta : unsigned char {
  kRole,
  kContent,
  kReasoning,
  kCallStart,
  kArguments,
  kFinish
};

struct ChatChunk {
  ChatDelta delta = ChatDelta::kRole;
  int32_t choice = 0;
  std::string_view text = {};  // kContent, kReasoning, kArguments: the piece; kCallStart: the name
  int32_t call_index = -1;
  std::string_view call_id = {};                // kCallStart
  std::string_view logprobs = {};               // JSON objects joined by commas, "" for null
  const ChoiceFinish* finish = nullptr;         // kFinish
  std::string_view usage_json = {};             // "" leaves the field out
  std::string_view token_ids_json = {};         // "" leaves the field out
  std::string_view prompt_token_ids_json = {};  // "" leaves the field out
};

// One chat.completion.chunk.
std::string WriteChatChunk(const ChatFormat& format, const ChatChunk& chunk);

// The chunk with empty choices that carries the usage.
std::string WriteChatUsageChunk(const ChatFormat& format, std::string_view usage_json);

// One element of `choices` of the body.
struct ChatAnswerChoice {
  int32_t index = 0;
  const ChatMessage* message = nullptr;
  const ChoiceFinish* finish = nullptr;
  bool logprobs = false;
  std::string_view token_ids_json = {};
};

struct ChatAnswer {
  std::vector<ChatAnswerChoice> choices;
  std::string_view usage_json = {};
  std::string_view metrics_json = {};           // "" leaves the field out
  std::string_view prompt_token_ids_json = {};  // "" leaves the field out
};

// The chat.completion object.
std::string WriteChatBody(const ChatFormat& format, const ChatAnswer& body);

}  // namespace deepinfer
