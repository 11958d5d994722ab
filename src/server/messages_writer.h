// Anthropic Messages answers: the event sequence of a stream and the message object (api.md §10).
// Thread rule: one object, one thread. Owner: the answer it writes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_writer.h"

namespace deepinfer {

class JsonWriter;

struct MessagesFormat {
  std::string id;  // "msg_..."
  std::string model;
  bool starts_in_reasoning = false;  // the answer begins with a thinking block
  bool counts_cache_writes = false;  // the request marked what to cache
  bool cache_lives_1h = false;       // lifetime of its last mark, else five minutes
  bool usage_extension = true;       // usage.deepinfer
  bool reference = false;            // the forms of the official conversion rules
};

// "tool_use", "max_tokens", ... of an answer that ended so.
std::string_view MessagesStopReason(const AnswerEnd& end);

class MessagesWriter final : public AnswerWriter {
 public:
  // `make_call_id(index)` names a call that starts.
  MessagesWriter(MessagesFormat format, std::function<std::string(int32_t)> make_call_id);

  void Start(const UsageCounts& usage, NamedEvents* events) override;
  void Take(const OutputEvent& event, std::string_view logprobs, NamedEvents* events) override;
  void End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) override;
  void Abort(const ApiError& error, std::string_view request_id, NamedEvents* events) override;
  std::string Body() const override;
  std::vector<std::string> CallIds() const override;

 private:
  enum class BlockKind : unsigned char { kThinking, kText, kToolUse };
  struct Block {
    BlockKind kind = BlockKind::kText;
    std::string text;  // thinking, text, or the JSON text of the arguments
    std::string id;    // kToolUse
    std::string name;  // kToolUse
  };

  void Open(Block block, NamedEvents* events);
  void Close(NamedEvents* events);
  void Add(std::string_view text, NamedEvents* events);
  void WriteUsage(const UsageCounts& usage, JsonWriter* json) const;
  void WriteBlock(const Block& block, bool as_opened, JsonWriter* json) const;
  void WriteMessage(const UsageCounts& usage, JsonWriter* json) const;

  const MessagesFormat format_;
  const std::function<std::string(int32_t)> make_call_id_;
  std::vector<Block> blocks_;
  bool open_ = false;  // the last block
  std::string stop_reason_json_ = "null";
  std::string stop_sequence_json_ = "null";
  UsageCounts usage_;
};

}  // namespace deepinfer
