// JSON form of log-probabilities (api.md §4, §8).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace deepinfer {

class JsonWriter;
class Tokenizer;

// Stands for -inf and NaN, which JSON cannot write.
inline constexpr float kLogprobFloor = -9999.0f;

// The number as printed; `*num_nan` counts NaNs.
float PrintableLogprob(float logprob, int64_t* num_nan);

// Token bytes as text: valid UTF-8 as it is, every other byte as \xNN (chat form).
std::string LogprobTokenText(std::string_view bytes);

// Valid UTF-8 as it is, else "bytes:" and every byte as \xNN (completions form).
std::string CompletionsTokenText(std::string_view bytes);

// {"token","logprob","bytes","top_logprobs":[...]} of one committed token.
void WriteChatLogprob(const Tokenizer& tokenizer, int32_t id, const TokenLogprobs& logprobs,
                      int64_t* num_nan, JsonWriter* json);

}  // namespace deepinfer
