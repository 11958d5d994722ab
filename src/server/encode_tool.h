// Producer of `deepinfer encode`: a request body -> one JSON line with its prompt, ids and
// settings in the shape of the reference vectors, or the error.
// Thread rule: pure functions; the tokenizer is only read.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace deepinfer {

class Tokenizer;

struct EncodeOutcome {
  std::string json_line;  // without the newline
  int exit_code = 0;      // 0, or 2 when the line is an error object
};

// Name and JSON value of conversion options.
using ConversionOptionList = std::vector<std::pair<std::string, std::string>>;

// `dialect`: "chat", "messages" or "responses". `options`: name and JSON value of each option of
// the vectors (default_thinking_mode, reasoning_content_behavior, messages_web_search,
// model_aliases, thinking_max_tokens_upper_bound, non_thinking_max_tokens_upper_bound, and
// model_version with "v4" or "v41" for any model name). invalid_request: unknown dialect or option,
// bad value.
Result<EncodeOutcome> RunEncode(const Tokenizer& tokenizer, std::string_view dialect,
                                const ConversionOptionList& options, std::string_view body);

// The same for a line of a file of requests: a JSON object with `request` (the body) or `raw` (its
// text), and `options` besides those given. invalid_request: also when the line has another shape.
Result<EncodeOutcome> RunEncodeLine(const Tokenizer& tokenizer, std::string_view dialect,
                                    ConversionOptionList options, std::string_view line);

}  // namespace deepinfer
