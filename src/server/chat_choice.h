// One choice of a chat answer: takes engine events, keeps the message, writes the chunks.
// Thread rule: one object, one thread. Owner: ChatResponse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/chat_format.h"
#include "server/choice_tokens.h"
#include "server/response_common.h"

namespace deepinfer {

struct ChatChoiceSettings {
  int32_t index = 0;
  int32_t eos_token_id = 1;
  bool stream = false;
  bool logprobs = false;
  bool return_token_ids = false;
  std::vector<OutputEvent> echo;  // what its answer begins with
  ParserSettings parser;
  ToolTurnSink on_tool_turn;  // may be empty
};

class ChatChoice {
 public:
  // `tokenizer` and `format` are borrowed and outlive this object.
  ChatChoice(const Tokenizer& tokenizer, const ChatFormat& format, ChatChoiceSettings settings);

  // Takes an event into the message. Ignored once the choice ended.
  ChoiceProgress Take(const TokenEvent& event);

  // Writes the chunks of everything taken since the last call. Returns whether this choice has
  // written any so far. Only when streaming.
  bool WriteChunks(const ChunkUsage& usage, std::string_view prompt_token_ids_json,
                   std::vector<std::string>* chunks);

  bool succeeded() const { return tokens_.succeeded(); }
  const ChatMessage& message() const { return message_; }
  const ChoiceTokens& tokens() const { return tokens_; }
  int64_t num_nan_logprobs() const { return num_nan_logprobs_; }

 private:
  // An event, with the JSON that only this class can make.
  struct Step {
    OutputEvent event;
    std::string logprobs;
  };

  void Absorb(std::vector<OutputEvent> events);
  std::string LogprobsOf(const OutputEvent& event);
  void Write(ChatChunk chunk, const ChunkUsage& usage, std::vector<std::string>* chunks);
  void WriteArguments(const OutputEvent& event, const ChunkUsage& usage,
                      std::vector<std::string>* chunks);
  void FlushArguments(const ChunkUsage& usage, std::vector<std::string>* chunks);

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  ChatChoiceSettings settings_;
  ChoiceTokens tokens_;
  ChatMessage message_;
  std::vector<Step> steps_;  // not written yet
  size_t num_written_ids_ = 0;
  int64_t num_nan_logprobs_ = 0;
  std::string held_arguments_;
  int32_t open_call_ = -1;
  int64_t num_fragments_ = 0;  // of the open call
  bool started_ = false;       // its first token or its end came
  bool wrote_role_ = false;
  bool wrote_finish_ = false;
};

}  // namespace deepinfer
