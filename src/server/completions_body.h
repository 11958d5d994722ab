// The body of /v1/completions as it was read, before its values are checked. Internal to the
// request validators, which include the JSON library anyway. Thread rule: values.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>

#include "server/chat_body.h"
#include "server/completions_request.h"

namespace deepinfer {

struct ReadState;

struct CompletionsBody {
  CompletionsRequest request;  // prompts, suffix, echo and logprobs
  ChatBody common;
  std::optional<int64_t> best_of;
};

CompletionsBody ReadCompletionsBody(const boost::json::value& root,
                                    const ChatRequestOptions& options,
                                    const CompletionsLimits& limits, ReadState* state);

}  // namespace deepinfer
