// Producer of `deepinfer parse`: recorded model output -> the stream events and the final body in
// the shape of the reference vectors (recipe_stream.json).
// Thread rule: pure function; the tokenizer is only read.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

class Tokenizer;

// `dialect`: "chat", "messages" or "responses". `line`: a JSON object with `request` (the body),
// `options`, `chunks` (text,
// {"text","n"} or {"ids","logprobs"}) and `finish` (reason or null); `parsing` replaces the
// settings that follow from the request; `name` selects the recorded start conditions
// ("_no_ready", "_usage_no_cache"). Returns {"events":[[i,name,data],...],"final":{...}}.
// invalid_request: the line has another shape or its request is refused.
Result<std::string> RunParse(const Tokenizer& tokenizer, std::string_view dialect,
                             std::string_view line);

}  // namespace deepinfer
