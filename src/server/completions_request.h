// POST /v1/completions: body -> everything the server needs to run it (api.md §8).
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_request.h"

namespace deepinfer {

class Tokenizer;
struct SpecialTokens;

// One prompt, as text or as ids.
struct RawPrompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;
};

struct CompletionsRequest {
  // Fields shared with chat: model, sampling, max_tokens, num_choices (those that are generated),
  // stop strings, stream, labels, test hooks. The conversation is unused.
  ChatRequest common;
  int32_t num_answers = 1;         // choices of a prompt that the client gets
  std::vector<RawPrompt> prompts;  // never empty
  std::optional<std::string> suffix;
  std::optional<int32_t> logprobs;
  bool echo = false;

  // More are generated than asked for: the client gets the likeliest.
  bool ranks() const { return num_answers < common.num_choices; }
};

struct CompletionsLimits {
  int32_t max_logprobs = 1000;
};

ApiResult<CompletionsRequest> ParseCompletionsRequest(std::string_view body,
                                                      const ChatRequestOptions& options,
                                                      const CompletionsLimits& limits);

struct EncodedPrompt {
  std::vector<int32_t> ids;
  bool begin_added = false;  // ids[0] is a begin token the client did not send
};

// Ids of one prompt: begin token in front unless it is there, fill-in-the-middle markers around
// the parts when a suffix is given. `specials`: strings of added tokens become their ids.
// unsupported_parameter when the tokenizer has no fill-in-the-middle tokens.
ApiResult<EncodedPrompt> EncodeRawPrompt(const Tokenizer& tokenizer, const SpecialTokens& special,
                                         const RawPrompt& prompt,
                                         const std::optional<std::string>& suffix, bool specials);

}  // namespace deepinfer
