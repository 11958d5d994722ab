// Exact replay (api.md §7): clients send an assistant turn back re-serialised, with other key order
// and spacing in the arguments of its calls, or without its reasoning. Where that is still the turn
// that was sampled, the prompt holds the sampled tokens again, so that cached state goes on.
// Thread rule: pure functions; the tokenizer is only read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/conversation.h"
#include "text/segment.h"
#include "text/special_tokens.h"

namespace deepinfer {

class Tokenizer;

// Equal as JSON: whatever the order of keys, spacing, escapes, and 1 for 1.0. False if one of the
// texts is not JSON.
bool IsEqualJson(std::string_view a, std::string_view b);

// What stands for `turn` behind its header, if it is the turn that was sampled as `ids`: its text,
// the names of its calls and their arguments as JSON are equal. `ids` begin with the think token of
// the header and end with the end token. keep_reasoning: the prompt keeps the reasoning of finished
// turns; then one that the client left out is filled in, and one it changed is taken from it.
std::optional<std::vector<Segment>> RestoreSampledTurn(const Tokenizer& tokenizer,
                                                       const SpecialTokens& special,
                                                       std::span<const int32_t> ids,
                                                       const AssistantTurn& turn,
                                                       bool keep_reasoning);

}  // namespace deepinfer
