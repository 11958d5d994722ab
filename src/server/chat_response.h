// Builds the answer of POST /v1/chat/completions from engine events: stream chunks or the one
// body, with the same text, calls, finish reasons and usage in both (api.md §4-§6).
// Thread rule: one object, one thread. Owner: the request's connection.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/chat_format.h"
#include "server/response_common.h"
#include "server/usage.h"
#include "text/output_event.h"
#include "text/output_parser.h"
#include "text/special_tokens.h"

namespace deepinfer {

class Tokenizer;
struct ParsingSettings;  // server/chat_request.h

struct ChatResponseOptions {
  std::string id;  // "chatcmpl-..."
  std::string model;
  std::string system_fingerprint;
  std::string service_tier;  // "": field left out
  int64_t created_s = 0;
  int32_t num_choices = 1;
  bool thinking = false;  // reasoning_content is present
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  StreamUsageStyle usage_style = StreamUsageStyle::kOpenAi;
  bool usage_extension = true;  // usage.deepinfer
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool logprobs = false;
  bool return_token_ids = false;
  std::vector<int32_t> prompt_ids;  // read only with return_token_ids
  std::vector<OutputEvent> echo;    // what every answer begins with
  int64_t image_tokens = 0;
  int32_t eos_token_id = 1;
  ParserSettings parser;
  ToolTurnSink on_tool_turn;  // may be empty
};

// Settings of the output parser for a validated request.
ParserSettings MakeParserSettings(const ParsingSettings& parsing, const SpecialTokens& special);

class ChatResponse {
 public:
  // `tokenizer` is borrowed and outlives this object.
  ChatResponse(const Tokenizer& tokenizer, ChatResponseOptions options);
  ~ChatResponse();

  // Takes one event of one choice. When streaming, appends the JSON of the chunks that are due
  // (without "data: "): a choice's chunks wait until all lower choices have started. Events behind
  // the end of a choice are ignored.
  ChoiceProgress OnEvent(int32_t choice, const TokenEvent& event, std::vector<std::string>* chunks);

  // Every choice is kStopped or kFinished.
  bool done() const;

  // The chunk behind the last finish chunk; "" if none is due. Precondition: done(), streaming.
  std::string UsageChunk() const;

  // The chat.completion object. Precondition: done(). `metrics` may be null.
  std::string Body(const ResponseMetrics* metrics) const;

  UsageCounts usage() const;
  // What the parsers met, summed over the choices, for the counters.
  MalformedCounts malformed() const;
  int64_t num_nan_logprobs() const;
  // finish_reason of a choice; "" while running.
  std::string_view finish_reason(int32_t choice) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
